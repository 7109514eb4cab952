//! A request can be asked about.

use std::time::Duration;

use quire_engine::{Prompt, Request, SamplingParams};
use quire_scheduler::{Refusal, SeqStatus, WaitReason};

use crate::rig::{RigSpec, drain};

#[test]
fn whoever_waits_is_told_why() {
    let spec = RigSpec::default();
    let rig = RigSpec { options: spec.options.clone().max_num_seqs(1), ..spec }.start(|_, _| 50);
    rig.control.set_delay(Duration::from_millis(20));
    let requests: Vec<_> = (0..3)
        .map(|id| Request::new(Prompt::TokenIds(vec![9 + id; 5]), SamplingParams::greedy(30)))
        .collect();
    let ids: Vec<_> = requests.iter().map(|request| request.id.clone()).collect();
    let streams: Vec<_> = requests.into_iter().map(|request| rig.llm.stream(request).unwrap()).collect();
    let client = rig.llm.to_async();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let explain = |id| {
        let explained = runtime.block_on(client.explain(id)).unwrap();
        explained.first().copied()
    };
    // The first step may not have been planned yet.
    while explain(&ids[0]).is_some_and(|first| first.status != SeqStatus::Running) {}
    let second = explain(&ids[1]).unwrap();
    assert_eq!(second.status, SeqStatus::Waiting);
    assert_eq!(second.waits_for, Some(WaitReason::Refused(Refusal::SeqLimit { limit: 1 })));
    assert!(matches!(explain(&ids[2]).unwrap().waits_for, Some(WaitReason::Behind { place: 1, .. })));
    let stats = rig.llm.stats();
    assert_eq!((stats.waiting_by_reason["seq_limit"], stats.waiting_by_reason["queue"]), (1, 1), "{stats:?}");
    client.log_schedule_of(Some(&ids[0])).unwrap();
    rig.control.set_delay(Duration::ZERO);
    streams.into_iter().for_each(|stream| drop(drain(stream)));
    rig.check_idle();
    assert_eq!(explain(&ids[0]), None);
}
