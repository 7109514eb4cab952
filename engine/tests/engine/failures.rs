//! Devices that fail, and the end of an engine.

use std::time::Duration;

use quire_engine::{Error, ErrorKind, Request, RequestEvent, SamplingParams};
use quire_executor::testing::NO_TOKEN;
use quire_scheduler::record::Recording;
use quire_scheduler::{Fcfs, Rank, SchedulerPolicy, SequenceView, StepBuilder, standard_plan};

use crate::rig::{RigSpec, drain, noise, noise_output};

fn greedy(max_tokens: u64) -> SamplingParams {
    SamplingParams { ignore_eos: false, ..SamplingParams::greedy(max_tokens) }
}

#[test]
fn a_failed_step_ends_its_requests_and_the_engine_goes_on() {
    for spec in [RigSpec::default(), RigSpec::default().plain()] {
        let spec = RigSpec { options: spec.options.clone().max_num_seqs(2), ..spec };
        let rig = spec.start(noise);
        rig.control.fail_step(3);
        let prompts: Vec<Vec<u32>> = (0..6).map(|i| vec![100 + i; 9]).collect();
        let requests = prompts.iter().map(|prompt| Request::new(prompt.clone(), greedy(20))).collect();
        let results = rig.llm.generate_each(requests);
        let num_failed = results.iter().filter(|result| result.is_err()).count();
        assert!((1..=2).contains(&num_failed), "those of the open steps: {num_failed}");
        for (prompt, result) in prompts.iter().zip(results) {
            match result {
                Ok(output) => assert_eq!(output.outputs[0].token_ids, noise_output(prompt, 20)),
                Err(error) => {
                    assert!(matches!(error, Error::Executor(_)), "{error:?}");
                    assert_eq!(error.kind(), ErrorKind::Internal);
                }
            }
        }
        assert_eq!(rig.control.num_resets(), 1);
        rig.check_idle();
        rig.check_alive();
    }
}

#[test]
fn a_row_without_a_finite_logit_fails_alone_and_says_where() {
    for spec in [RigSpec::default(), RigSpec::default().plain()] {
        // The model computes nothing that can be chosen from at the third token of one prompt.
        let rig = spec.start(|prompt, position| match (prompt[0], position - prompt.len()) {
            (102, 2) => NO_TOKEN,
            _ => noise(prompt, position),
        });
        let prompts: Vec<Vec<u32>> = (0..5).map(|i| vec![100 + i; 9]).collect();
        let requests = prompts.iter().map(|prompt| Request {
            id: quire_engine::RequestId::new(format!("r{}", prompt[0])),
            ..Request::new(prompt.clone(), greedy(20))
        });
        let results = rig.llm.generate_each(requests.collect());
        for (prompt, result) in prompts.iter().zip(results) {
            match (prompt[0], result) {
                (102, Err(error)) => {
                    assert_eq!(error.kind(), ErrorKind::Internal);
                    assert_eq!(error.to_string(), "request r102 has no next token");
                    let cause = std::error::Error::source(&error).unwrap().to_string();
                    assert!(
                        cause.starts_with("the model gave no finite logits for position 11: "),
                        "{cause}"
                    );
                }
                (_, result) => {
                    assert_eq!(result.unwrap().outputs[0].token_ids, noise_output(prompt, 20));
                }
            }
        }
        assert_eq!(rig.control.num_resets(), 0);
        assert_eq!(rig.llm.stats().num_finished[&quire_engine::FinishReason::Error], 1);
        rig.check_idle();
        rig.check_alive();
    }
}

/// What the client can change is the client's error, and names what to change.
#[test]
fn a_row_whose_parameters_leave_no_token_is_told_which_they_are() {
    type Case = (fn(SamplingParams) -> SamplingParams, &'static [&'static str]);
    let cases: [Case; 3] = [
        (|usual| SamplingParams { allowed_token_ids: Some(vec![9]), ..usual }, &["allowed_token_ids"]),
        (|usual| SamplingParams { bad_words: vec!["x".into()], ..usual }, &["bad_words"]),
        (
            |usual| SamplingParams {
                stop_token_ids: vec![9],
                allowed_token_ids: Some(vec![9]),
                min_tokens: 2,
                ..usual
            },
            &["allowed_token_ids", "min_tokens"],
        ),
    ];
    for (with, expected) in cases {
        let rig = RigSpec::default().start(|_, _| NO_TOKEN);
        let error = rig.llm.generate_each(vec![Request::new("y", with(greedy(4)))]).remove(0).unwrap_err();
        assert_eq!((error.kind(), error.field()), (ErrorKind::BadRequest, Some(expected[0])));
        let named = format!("{} together forbid every token", expected.join(", "));
        assert!(error.to_string().contains(&named), "{error}");
        assert!(error.to_string().contains(" at position "), "{error}");
    }
}

#[test]
fn the_prefix_cache_is_empty_after_a_failure() {
    let rig = RigSpec::default().start(noise);
    let run = || rig.llm.generate([vec![9_u32; 40]], &greedy(3)).unwrap().remove(0).num_cached_tokens;
    assert_eq!(run(), 0);
    assert!(run() > 0);
    let next_step = rig.control.batches().last().unwrap().step + 1;
    rig.control.fail_step(next_step);
    assert!(rig.llm.generate(["x"], &greedy(3)).is_err());
    assert_eq!(run(), 0);
}

#[test]
fn a_device_that_does_not_come_back_ends_the_engine_with_an_answer() {
    let rig = RigSpec::default().start(noise);
    rig.control.fail_step(2);
    rig.control.fail_resets(1);
    let error = rig.llm.generate(vec!["x"; 20], &greedy(20)).unwrap_err();
    assert!(matches!(error.kind(), ErrorKind::Internal | ErrorKind::Unavailable), "{error:?}");
    let error = rig.llm.generate(["x"], &greedy(1)).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Unavailable);
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("did not come back"), "{cause}");
}

#[test]
fn streams_that_outlive_the_engine_end() {
    let rig = RigSpec::default().start(|_, _| 50);
    let params = SamplingParams { max_tokens: None, ..SamplingParams::default() };
    rig.control.set_delay(Duration::from_millis(5));
    let mut stream = rig.llm.stream(Request::new("x", params)).unwrap();
    drop(rig);
    let last = std::iter::from_fn(|| stream.blocking_next()).last();
    assert!(
        matches!(last, Some(RequestEvent::Failed(Error::Stopped { .. }) | RequestEvent::Finished(_))),
        "{last:?}"
    );
}

#[test]
fn br_09_names_of_requests_need_not_be_unique() {
    let rig = RigSpec::default().start(noise);
    let request = |id: u32| Request {
        id: quire_engine::RequestId::new("same"),
        ..Request::new(vec![id; 5], greedy(20))
    };
    let streams = [100, 101].map(|id| (id, rig.llm.stream(request(id)).unwrap()));
    for (id, stream) in streams {
        let (_, output) = drain(stream);
        assert_eq!(output.request_id.as_str(), "same");
        assert_eq!(output.outputs[0].token_ids, noise_output(&[id; 5], 20));
    }
}

/// Panics in its third step.
struct Broken {
    num_plans: u32,
}

impl SchedulerPolicy for Broken {
    fn name(&self) -> &str {
        "broken"
    }

    fn rank(&self, seq: &SequenceView<'_>) -> Rank {
        seq.arrival().into()
    }

    fn plan(&mut self, step: &mut StepBuilder<'_>) {
        self.num_plans += 1;
        assert!(self.num_plans < 3, "a bug");
        standard_plan(self, step);
    }
}

/// A bug ends the engine, not the program, and leaves what led to it in a file that can be read.
#[test]
fn a_panic_of_the_engines_thread_leaves_a_recording() {
    let folder = tempfile::tempdir().unwrap();
    let spec = RigSpec { policy: Box::new(Broken { num_plans: 0 }), ..RigSpec::default().plain() };
    let options = spec.options.clone().recording_dir(Some(folder.path().to_owned()));
    let rig = RigSpec { options, ..spec }.start(noise);
    let kind = rig.llm.generate(["x"], &greedy(20)).unwrap_err().kind();
    assert_eq!(kind, ErrorKind::Unavailable);
    drop(rig); // it waits for the thread, which writes before it ends
    let written: Vec<_> =
        std::fs::read_dir(folder.path()).unwrap().map(|entry| entry.unwrap().path()).collect();
    let [file] = &written[..] else { panic!("{written:?}") };
    let recording = Recording::from_bytes(&std::fs::read(file).unwrap()).unwrap();
    assert_eq!(recording.policy_name(), "broken");
    let summary = recording.summary().unwrap();
    assert_eq!((summary.num_requests, summary.num_steps, summary.num_finished), (1, 2, 0));
    // What the other steps decided can be made again, with a policy that does what this one did.
    assert_eq!(recording.replay(Box::new(Fcfs)).unwrap().num_steps, 2);
}
