//! A request can be asked about.

use std::time::Duration;

use quire_engine::{Bytes, EngineClient, Error, Prompt, Request, RequestEvent, SamplingParams};
use quire_kvcache::PinError;
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
    let all = rig.llm.explainer().explain_all().unwrap();
    let told: Vec<_> = all.iter().map(ToString::to_string).collect();
    assert!(told[0].starts_with(&format!("request {} runs, came ", ids[0])), "{told:?}");
    assert!(told[1].ends_with(" s: 1 sequences run, which is max_num_seqs"), "{told:?}");
    assert!(
        told[2].ends_with(&format!(" s: 1 of its queue come first, {} the first of them", ids[1])),
        "{told:?}"
    );
    let stats = rig.llm.stats();
    assert_eq!((stats.waiting_by_reason["seq_limit"], stats.waiting_by_reason["queue"]), (1, 1), "{stats:?}");
    client.log_schedule_of(Some(&ids[0])).unwrap();
    rig.control.set_delay(Duration::ZERO);
    streams.into_iter().for_each(|stream| drop(drain(stream)));
    rig.check_idle();
    assert_eq!(explain(&ids[0]), None);
    assert_eq!(rig.llm.explainer().explain_all().unwrap(), []);
}

#[test]
fn requests_that_wait_are_counted_by_reason_and_not_their_outputs() {
    let spec = RigSpec::default();
    let rig = RigSpec { options: spec.options.clone().max_num_seqs(2), ..spec }.start(|_, _| 50);
    rig.control.set_delay(Duration::from_millis(20));
    let several = SamplingParams { n: 3, temperature: 1.0, ..SamplingParams::greedy(30) };
    let requests = [several, SamplingParams::greedy(30)]
        .map(|params| Request::new(Prompt::TokenIds(vec![9; 5]), params));
    let streams = requests.map(|request| rig.llm.stream(request).unwrap());
    let explainer = rig.llm.explainer();
    // Two outputs find no seat, one of them at least of the request of which another runs.
    let num_waiting = || {
        let all = explainer.explain_all().unwrap();
        all.iter().filter(|one| one.explanation.status == SeqStatus::Waiting).count()
    };
    while num_waiting() != 2 {}
    let stats = rig.llm.stats();
    assert_eq!(stats.num_running + stats.num_waiting, 2, "{stats:?}");
    assert_eq!(stats.waiting_by_reason.values().sum::<usize>(), stats.num_waiting, "{stats:?}");
    rig.control.set_delay(Duration::ZERO);
    for mut stream in streams {
        let last = std::iter::from_fn(|| stream.blocking_next()).last();
        assert!(matches!(last, Some(RequestEvent::Finished(_))), "{last:?}");
    }
    rig.check_idle();
}

#[test]
fn a_pinned_beginning_stays_while_others_come_and_go() {
    let mut spec = RigSpec::with_pool(32, 4);
    (spec.capacity.block_bytes, spec.capacity.max_model_len) = (1000, 64);
    spec.options = spec.options.clone().max_pinned_bytes(Bytes(5000));
    let rig = spec.start(|_, _| 50);
    let beginning: Vec<u32> = (100..117).collect();
    let pin = rig.llm.pin_prefix(beginning.clone()).unwrap();
    let cached = || {
        let longer = [beginning.clone(), vec![7; 3]].concat();
        rig.llm.generate([longer], &SamplingParams::greedy(1)).unwrap().remove(0).num_cached_tokens
    };
    let push_out = || {
        let others = (0..8).map(|i| vec![20 + i; 60]);
        rig.llm.generate(others, &SamplingParams::greedy(2)).unwrap();
    };
    push_out();
    assert_eq!(cached(), 16);
    let error = rig.llm.pin_prefix(vec![9; 8]).unwrap_err();
    assert!(matches!(error, Error::Pin(PinError::OverCap { need_bytes: 2000, .. })), "{error:?}");
    let error = rig.llm.pin_prefix(vec![9; 3]).unwrap_err();
    assert!(matches!(error, Error::Pin(PinError::NotCached { num_tokens: 0, .. })), "{error:?}");
    assert!(rig.llm.unpin_prefix(pin).unwrap() && !rig.llm.unpin_prefix(pin).unwrap());
    push_out();
    assert_eq!(cached(), 0);
    let replayed = rig.llm.flight_recorder().recording().replay(Box::new(quire_scheduler::Fcfs));
    assert!(replayed.unwrap().num_steps > 8, "pins are part of what is recorded");
}
