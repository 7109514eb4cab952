//! Decisions in the log.

use std::fmt::Write as _;
use std::sync::{Arc, Mutex};

use quire_kvcache::{KvCacheConfig, KvCacheManager};
use quire_scheduler::{
    Fcfs, LogFilter, LogObserver, NewSequence, Scheduler, SchedulerConfig, SeqId, SequenceResult, Time,
};
use tracing::field::{Field, Visit};
use tracing::span;

/// Keeps the lines of one target.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Message<'a>(&'a mut String);

impl Visit for Message<'_> {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        }
    }
}

impl tracing::Subscriber for Lines {
    fn enabled(&self, metadata: &tracing::Metadata<'_>) -> bool {
        metadata.target() == "quire::schedule"
    }

    fn new_span(&self, _span: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _span: &span::Id, _values: &span::Record<'_>) {}

    fn record_follows_from(&self, _span: &span::Id, _follows: &span::Id) {}

    fn event(&self, event: &tracing::Event<'_>) {
        let mut line = String::new();
        event.record(&mut Message(&mut line));
        self.0.lock().unwrap().push(line);
    }

    fn enter(&self, _span: &span::Id) {}

    fn exit(&self, _span: &span::Id) {}
}

#[test]
fn every_decision_is_a_line_and_one_sequence_can_be_watched_alone() {
    let (lines, filter) = (Lines::default(), LogFilter::default());
    tracing::subscriber::with_default(lines.clone(), || {
        let cache = KvCacheManager::new(KvCacheConfig::new(4, 16)).unwrap();
        let mut scheduler = Scheduler::new(SchedulerConfig::new(64), Box::new(Fcfs), cache).unwrap();
        scheduler.add_observer(LogObserver::new(filter.clone()));
        for (token, num_tokens) in [(1, 40), (2, 30)] {
            scheduler.add(NewSequence::new(vec![token; num_tokens], 2, Time::ZERO)).unwrap();
        }
        for only in [None, Some(SeqId(1))] {
            filter.only(only);
            let plan = scheduler.schedule(Time::ZERO).unwrap().unwrap();
            let row = &plan.rows[0];
            let result = SequenceResult { seq: row.seq, epoch: row.epoch, tokens: &[7], finish: None };
            scheduler.commit(plan.step, &[result]).unwrap();
        }
    });
    let lines = lines.0.lock().unwrap();
    let refused = "reason=2 blocks needed, 1 available, 0 to come with open steps and transfers";
    assert_eq!(
        lines[..],
        [
            "[schedule] step=- seq_id=0 state=waiting block_num=0 tokens=40 reason=arrived".to_owned(),
            "[schedule] step=- seq_id=1 state=waiting block_num=0 tokens=30 reason=arrived".to_owned(),
            "[schedule] step=1 seq_id=0 state=allocated block_num=3 tokens=0 reason=cached".to_owned(),
            "[schedule] step=1 seq_id=0 state=prefill block_num=3 tokens=40 reason=granted".to_owned(),
            format!("[schedule] step=1 seq_id=1 state=waiting block_num=0 tokens=0 {refused}"),
            format!("[schedule] step=2 seq_id=1 state=waiting block_num=0 tokens=0 {refused}"),
        ]
    );
}
