use std::collections::BTreeMap;
use std::time::Duration;

use quire::scheduler::{
    ClassHeads, ClassId, EventKind, Rank, Rerank, SchedEvent, SchedulerPolicy, SequenceView, Time,
};

/// Tenants share alike: the one that was served the fewest tokens is next.
#[derive(Default)]
pub struct FairShare(BTreeMap<ClassId, u64>);

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
    fn next_class(&mut self, heads: &ClassHeads<'_>, _now: Time) -> Option<ClassId> {
        heads.iter().map(|head| head.class()).min_by_key(|class| self.0.get(class))
    }
    fn on_event(&mut self, event: &SchedEvent<'_>) -> Rerank {
        if let EventKind::Granted { num_tokens } = event.kind {
            *self.0.entry(event.seq.class()).or_default() += u64::from(num_tokens);
        }
        Rerank::None
    }
    /// New tenants come first, without end.
    fn max_overtaking(&self) -> Option<Duration> {
        None
    }
}
