use std::collections::BTreeMap;

use quire::scheduler::{ClassHeads, ClassId, Rank, Rerank, SchedEvent, SchedulerPolicy, SequenceView};

/// Tenants share alike: the one that was served the fewest tokens is next.
#[derive(Default)]
pub struct FairShare {
    served_tokens: BTreeMap<ClassId, u64>,
}

impl SchedulerPolicy for FairShare {
    fn name(&self) -> &str {
        "mine"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        seq.arrival().into()
    }

    fn class(&self, seq: &SequenceView<'_>) -> ClassId {
        ClassId(seq.tenant().0)
    }

    fn next_class(&mut self, heads: &ClassHeads<'_>, _now: quire::scheduler::Time) -> Option<ClassId> {
        heads.iter().map(|head| head.class()).min_by_key(|class| self.served_tokens.get(class))
    }

    fn on_event(&mut self, event: &SchedEvent<'_>) -> Rerank {
        if let quire::scheduler::EventKind::Granted { num_tokens } = event.kind {
            *self.served_tokens.entry(event.seq.class()).or_default() += u64::from(num_tokens);
        }
        Rerank::None
    }
}
