//! What a stream brings before its end: pieces, all so far, or nothing.

use quire_engine::{Delta, FinishReason, OutputKind, Request, RequestEvent, RequestOutput, SamplingParams};

use crate::rig::{RigSpec, byte_tokens};

/// All that a request of one kind brought.
struct Brought {
    /// By output: the pieces, joined.
    deltas: Vec<Delta>,
    /// By output: what was said to be all so far, in order.
    so_far: Vec<Vec<Delta>>,
    end: RequestOutput,
}

fn bring(request: Request) -> Brought {
    let n = request.params.n as usize;
    // Outputs do not all say the same: what an output says follows from its place in the vocabulary of bytes.
    let rig = RigSpec::default().start_with_tokens(byte_tokens("Hé, wörld! 🙂 STOP and on"));
    let mut stream = rig.llm.stream(request).unwrap();
    let (mut deltas, mut so_far) = (vec![Delta::default(); n], vec![Vec::new(); n]);
    loop {
        match stream.blocking_next().expect("a stream ends with an event") {
            RequestEvent::Delta(delta) => join(&mut deltas[delta.index as usize], delta),
            RequestEvent::PromptLogprobs(_) => {}
            RequestEvent::SoFar(all) => so_far[all.index as usize].push(all),
            RequestEvent::Finished(end) => return Brought { deltas, so_far, end: *end },
            RequestEvent::Failed(error) => panic!("{error}"),
        }
    }
}

fn join(all: &mut Delta, next: Delta) {
    all.index = next.index;
    all.text.push_str(&next.text);
    all.token_ids.extend(next.token_ids);
    if let Some(next) = next.logprobs {
        all.logprobs.get_or_insert_default().extend(next);
    }
    (all.finish_reason, all.stop_reason) = (next.finish_reason, next.stop_reason);
}

#[track_caller]
fn assert_is_all(said: &Delta, end: &RequestOutput) {
    let output = &end.outputs[said.index as usize];
    assert_eq!((&said.text, &said.token_ids), (&output.text, &output.token_ids));
    assert_eq!(said.logprobs.as_deref().unwrap_or_default(), output.logprobs.as_deref().unwrap_or_default());
    assert_eq!((said.finish_reason, &said.stop_reason), (Some(output.finish_reason), &output.stop_reason));
}

fn check(params: SamplingParams) {
    let of =
        |output_kind| bring(Request::new(vec![70, 71], SamplingParams { output_kind, ..params.clone() }));
    let [delta, cumulative, last] =
        [OutputKind::Delta, OutputKind::Cumulative, OutputKind::FinalOnly].map(of);
    assert_eq!(delta.end.outputs, last.end.outputs);
    assert_eq!(cumulative.end.outputs, last.end.outputs);
    assert_eq!(last.end.outputs.len(), params.n as usize);
    assert!(delta.so_far.iter().all(Vec::is_empty) && last.so_far.iter().all(Vec::is_empty));
    assert!(last.deltas.iter().chain(&cumulative.deltas).all(|delta| *delta == Delta::default()));
    for (joined, so_far) in delta.deltas.iter().zip(&cumulative.so_far) {
        assert_is_all(joined, &delta.end);
        assert_is_all(so_far.last().unwrap(), &cumulative.end);
        for pair in so_far.windows(2) {
            assert!(pair[1].text.starts_with(&pair[0].text) && pair[0].finish_reason.is_none());
            assert!(pair[1].token_ids.starts_with(&pair[0].token_ids));
            assert_ne!(pair[0].text, params.stop.concat(), "no part of a stop string is shown");
        }
    }
}

#[test]
fn cumulative_at_the_end_is_all_deltas_joined_is_the_final_output() {
    for n in [1, 3] {
        for stop in [vec![], vec!["STOP".to_owned()]] {
            for logprobs in [None, Some(0), Some(2)] {
                for max_tokens in [None, Some(1), Some(12)] {
                    for include_stop_str_in_output in [false, true] {
                        let stop = stop.clone();
                        check(SamplingParams {
                            n,
                            stop,
                            logprobs,
                            max_tokens,
                            include_stop_str_in_output,
                            ..SamplingParams::default()
                        });
                    }
                }
            }
        }
    }
}

#[test]
fn what_has_ended_says_so_in_every_kind() {
    let params =
        SamplingParams { max_tokens: Some(3), output_kind: OutputKind::Cumulative, ..Default::default() };
    let brought = bring(Request::new(vec![70], params));
    let said: Vec<_> = brought.so_far[0].iter().map(|all| (all.text.as_str(), all.finish_reason)).collect();
    // A character of two bytes comes with its second.
    assert_eq!(said, [("H", None), ("Hé", Some(FinishReason::Length))]);
}
