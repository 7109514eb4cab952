//! The standard loop: running sequences first, then those that wait.

use crate::builder::StepBuilder;
use crate::ids::SeqId;
use crate::policy::SchedulerPolicy;
use crate::refusal::Refusal;

/// The standard step. Decodes come first, in the order of ranks: they cost a token each, and somebody watches them.
/// Prompts share what is left of the budget, those begun before those that wait. While blocks are short nobody is
/// admitted, so that room that comes free goes to whom it was freed for.
pub fn standard_plan<P: SchedulerPolicy + ?Sized>(policy: &mut P, step: &mut StepBuilder<'_>) {
    standard_serve(policy, step);
    while standard_admit(policy, step).is_some() {}
}

/// The first half of [`standard_plan`]: the running sequences.
pub fn standard_serve<P: SchedulerPolicy + ?Sized>(policy: &mut P, step: &mut StepBuilder<'_>) {
    serve_running(policy, step, |num_remaining_tokens| num_remaining_tokens == 1);
    serve_running(policy, step, |num_remaining_tokens| num_remaining_tokens > 1);
}

/// One turn of the second half of [`standard_plan`]: admits the head of the class that is next and grants it what it
/// can. `None` ends the admissions of this step, since nobody overtakes a head that waits for room.
pub fn standard_admit<P: SchedulerPolicy + ?Sized>(
    policy: &mut P,
    step: &mut StepBuilder<'_>,
) -> Option<SeqId> {
    if step.is_short_of_blocks() {
        return None;
    }
    let class = policy.next_class(&step.heads(), step.now())?;
    let head = step.heads().of(class)?.id();
    step.admit(head).ok()?;
    match step.grant(head, u32::MAX) {
        Ok(_) | Err(Refusal::SwapInFlight) => Some(head),
        Err(_) => None,
    }
}

fn serve_running<P: SchedulerPolicy + ?Sized>(
    policy: &mut P,
    step: &mut StepBuilder<'_>,
    is_due: impl Fn(u32) -> bool,
) {
    let mut place = 0;
    // Victims come after the one served, as a rule, so that places before it stay; should one come before, somebody is
    // passed over in this step only.
    while let Some(seq) = step.running_at(place).filter(|_| step.token_budget() > 0) {
        let (id, is_due) = (seq.id(), is_due(seq.num_remaining_tokens()));
        if is_due {
            serve(policy, step, id);
        }
        place += 1;
    }
}

/// Grants what it can, making room as long as there is somebody to give way. Blocks that come free with an open step
/// are waited for rather than taken from one more victim.
fn serve<P: SchedulerPolicy + ?Sized>(policy: &mut P, step: &mut StepBuilder<'_>, seq: SeqId) {
    while let Err(Refusal::NoBlocks(short)) = step.grant(seq, u32::MAX) {
        if short.need <= short.available + short.retiring {
            return;
        }
        let Some(victim) = policy.victim(&step.victims_for(seq)) else { return };
        if step.give_way(victim).is_err() {
            return;
        }
    }
}
