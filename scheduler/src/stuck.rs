//! A step that has work and plans nothing: no call and no policy brings a scheduler there, so the fault is made here.

use crate::builder::StepBuilder;
use crate::error::ScheduleError;
use crate::ids::{SeqId, Time};
use crate::policies::{Fcfs, standard_plan};
use crate::policy::{Rank, SchedulerPolicy};
use crate::record::{RecordedScheduler, Recording, RecordingError};
use crate::sequence::{NewSequence, SequenceView};
use crate::{KvCacheConfig, KvCacheManager, Scheduler, SchedulerConfig, SequenceResult};

/// First come, first served, until in one step it reaches behind the builder and loses all that wait.
struct Losing {
    in_step: u64,
}

impl SchedulerPolicy for Losing {
    fn name(&self) -> &str {
        "fcfs"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        seq.arrival().into()
    }

    fn plan(&mut self, step: &mut StepBuilder<'_>) {
        if step.step().0 < self.in_step {
            return standard_plan(self, step);
        }
        while let Some(head) = step.heads().first().map(|head| head.id()) {
            let seq = step.state.sequences.get(head).expect("a head is known");
            step.state.waiting.remove(seq);
        }
    }
}

/// Two requests, of which the second waits for the end of the first, which takes two steps; in the third there is nothing
/// left but the one that was lost.
fn run_into_the_fault() -> (RecordedScheduler, ScheduleError) {
    let cache = KvCacheManager::new(KvCacheConfig::new(8, 16)).unwrap();
    let config = SchedulerConfig { max_num_seqs: 1, ..SchedulerConfig::new(100) };
    let scheduler = Scheduler::new(config, Box::new(Losing { in_step: 3 }), cache).unwrap();
    let mut scheduler = RecordedScheduler::new(scheduler);
    for prompt in [vec![1; 20], vec![2; 30]] {
        scheduler.add(NewSequence::new(prompt, 2, Time::ZERO)).unwrap();
    }
    loop {
        let plan = match scheduler.schedule(Time::from_millis(1)) {
            Ok(plan) => plan.expect("there is work"),
            Err(error) => return (scheduler, error),
        };
        let row = &plan.rows[0];
        let result = SequenceResult { seq: row.seq, epoch: row.epoch, tokens: &[7], finish: None };
        scheduler.commit(plan.step, &[result], Time::from_millis(2)).unwrap();
    }
}

#[test]
fn br_04_a_step_with_work_and_no_plan_is_an_internal_error_with_a_dump() {
    let (mut scheduler, error) = run_into_the_fault();
    let ScheduleError::Stuck { step, dump } = &error;
    assert_eq!(step.0, 3);
    for part in
        ["max_num_seqs: 1", "total: 8", "waiting: 0, held: 0, running: 0", "seq 1: Waiting, 30 tokens"]
    {
        assert!(dump.contains(part), "{part:?} in {dump}");
    }
    assert!(error.to_string().starts_with("internal error: step 3 has work and plans nothing"));
    assert_eq!(scheduler.schedule(Time::from_millis(3)), Err(error), "it is told again, not waited for");
    assert!(scheduler.abort(SeqId(0)).is_none());
}

/// What an engine writes at such an error leads to it again, and a scheduler without the fault goes another way there.
#[test]
fn br_04_the_recording_of_an_internal_error_is_replayed() {
    let (scheduler, error) = run_into_the_fault();
    let recording = Recording::from_bytes(&scheduler.recorder().recording().to_bytes()).unwrap();
    let again = recording.replay(Box::new(Losing { in_step: 3 }));
    assert_eq!(again, Err(RecordingError::Refused { step: 2, reason: error.to_string() }));
    assert_eq!(recording.replay(Box::new(Fcfs)), Err(RecordingError::Diverged { step: 3 }));
}
