//! Several outputs of one request.

use quire_engine::{
    EngineOptions, Error, FinishReason, PreemptionMode, Prompt, Request, RequestEvent, RequestOutput,
    RequestStream, SamplingParams,
};
use quire_executor::testing::NO_TOKEN;

use crate::rig::{EOS, Random, Rig, RigSpec, noise, noise_output};

fn outputs(n: u32, max_tokens: u64) -> SamplingParams {
    SamplingParams { n, max_tokens: Some(max_tokens), ..SamplingParams::default() }
}

/// Reads a stream to its end: every token of every output comes once and in order, and each says when it ends.
#[track_caller]
fn drain(mut stream: RequestStream) -> RequestOutput {
    let mut pieces: Vec<(String, Vec<u32>, Option<FinishReason>)> = Vec::new();
    loop {
        match stream.blocking_next().expect("a stream ends with an event") {
            RequestEvent::Delta(delta) => {
                let index = delta.index as usize;
                pieces.resize(pieces.len().max(index + 1), Default::default());
                let (text, token_ids, end) = &mut pieces[index];
                assert_eq!(*end, None, "nothing follows the last piece");
                text.push_str(&delta.text);
                token_ids.extend(delta.token_ids);
                *end = delta.finish_reason;
            }
            RequestEvent::PromptLogprobs(_) => {}
            RequestEvent::SoFar(_) => panic!("pieces were asked for"),
            RequestEvent::Finished(output) => {
                let told = output.outputs.iter().map(|output| {
                    (output.text.clone(), output.token_ids.clone(), Some(output.finish_reason))
                });
                assert_eq!(pieces, told.collect::<Vec<_>>());
                return *output;
            }
            RequestEvent::Failed(error) => panic!("{error}"),
        }
    }
}

fn start(spec: RigSpec, chunk: Option<usize>, overlapped: bool) -> Rig {
    let mut options: EngineOptions =
        spec.options.clone().async_scheduling(overlapped).max_prefill_chunk(chunk);
    if spec.capacity.num_swap_blocks > 0 {
        options = options.swap_space(1.0).preemption_mode(PreemptionMode::Swap);
    }
    RigSpec { options, ..spec }.start(noise)
}

/// The device checks every block that a branch reads or writes: none is written that another one still needs.
#[test]
fn br_23_branches_share_what_they_may_under_preemption_and_chunks() {
    let (mut num_preemptions, mut num_swaps) = (0, 0);
    for (chunk, num_swap_blocks) in [(None, 0), (Some(1), 0), (Some(7), 64), (None, 12)] {
        for (num_blocks, block_size) in [(30, 4), (12, 8), (128, 4)] {
            for (overlapped, prefix_caching) in [(false, true), (true, true), (true, false)] {
                let mut spec = RigSpec::with_pool(num_blocks, block_size);
                spec.capacity.num_swap_blocks = num_swap_blocks;
                spec.options = spec.options.clone().enable_prefix_caching(prefix_caching);
                let rig = start(spec, chunk, overlapped);
                let mut random = Random(3);
                let prompts: Vec<Vec<u32>> = (0..12)
                    .map(|i| (0..1 + random.below(30)).map(|j| 3 + ((i * 13 + j) % 256) as u32).collect())
                    .collect();
                let request = |(i, prompt): (usize, &Vec<u32>)| {
                    Request::new(prompt.clone(), outputs(1 + i as u32 % 5, 1 + 7 * (i as u64 % 6)))
                };
                let streams: Vec<_> = prompts
                    .iter()
                    .enumerate()
                    .map(request)
                    .map(|request| rig.llm.stream(request).unwrap())
                    .collect();
                for (i, (prompt, stream)) in prompts.iter().zip(streams).enumerate() {
                    let output = drain(stream);
                    assert_eq!(output.outputs.len(), 1 + i % 5);
                    let expected = noise_output(prompt, 1 + 7 * (i % 6));
                    let room = num_blocks * block_size - prompt.len();
                    for output in output.outputs {
                        assert_eq!(output.token_ids, expected[..expected.len().min(room)], "request {i}");
                    }
                }
                rig.check_idle();
                rig.check_alive();
                let stats = rig.llm.stats();
                assert_eq!(stats.num_finished.values().sum::<u64>(), stats.num_requests);
                assert_eq!(stats.num_free_swap_blocks, num_swap_blocks);
                num_preemptions += stats.num_preemptions;
                num_swaps += stats.num_swaps;
            }
        }
    }
    assert!(num_preemptions > num_swaps && num_swaps > 0, "the pools are small enough");
}

#[test]
fn a_prompt_is_computed_once_for_all_outputs() {
    for overlapped in [false, true] {
        let mut spec = RigSpec::with_pool(64, 4);
        spec.options = spec.options.clone().enable_prefix_caching(false);
        let rig = start(spec, None, overlapped);
        let stream = rig.llm.stream(Request::new(vec![9; 30], outputs(4, 3))).unwrap();
        let output = drain(stream);
        assert_eq!(output.outputs.iter().map(|output| output.index).collect::<Vec<_>>(), [0, 1, 2, 3]);
        let batches = rig.control.batches();
        let prefilled: usize =
            batches.iter().map(|batch| batch.num_tokens()).filter(|tokens| *tokens > 8).sum();
        assert_eq!(prefilled, 30, "the other three compute its last token again");
        let added = batches.iter().flat_map(|batch| &batch.added);
        let indices: Vec<_> = added.clone().map(|row| row.sampling.sequence_index).collect();
        assert_eq!(indices, [0, 1, 2, 3], "each draws numbers of its own");
        assert_eq!(added.map(|row| row.num_computed_tokens).collect::<Vec<_>>(), [0, 29, 29, 29]);
        let stats = rig.llm.stats();
        assert_eq!((stats.num_prompt_tokens, stats.num_first_tokens, stats.num_requests), (30, 1, 1));
        assert_eq!(stats.num_generation_tokens, 12);
    }
}

#[test]
fn the_first_may_end_with_its_first_token() {
    for overlapped in [false, true] {
        for (token, max_tokens, reason) in [(EOS, 8, FinishReason::Stop), (50, 1, FinishReason::Length)] {
            let mut spec = RigSpec::default();
            spec.options = spec.options.clone().async_scheduling(overlapped);
            let rig = spec.start(move |_, _| token);
            let output = drain(rig.llm.stream(Request::new(vec![9; 7], outputs(3, max_tokens))).unwrap());
            for output in output.outputs {
                assert_eq!((output.token_ids, output.finish_reason), (vec![token], reason));
            }
            rig.check_idle();
            rig.check_alive();
            let stats = rig.llm.stats();
            assert_eq!(
                (stats.num_finished[&reason], stats.num_requests),
                (2, 2),
                "a request, not each output"
            );
        }
    }
}

/// More outputs than may run, and a prompt that leaves room for one token: what cannot be forked is queued.
#[test]
fn what_has_no_room_beside_the_first_waits() {
    let spec = RigSpec::default();
    let rig = RigSpec { options: spec.options.clone().max_num_seqs(3), ..spec }
        .start(|_, position| position as u32);
    let output = drain(rig.llm.stream(Request::new(vec![9; 7], outputs(8, 3))).unwrap());
    assert_eq!(output.outputs.len(), 8);
    assert!(output.outputs.iter().all(|output| output.token_ids == [7, 8, 9]));
    let longest = rig.llm.model().max_model_len - 1;
    let output = drain(rig.llm.stream(Request::new(vec![9; longest], outputs(3, 5))).unwrap());
    assert!(output.outputs.iter().all(|output| output.token_ids.len() == 1));
    rig.check_idle();
    rig.check_alive();
}

/// Eight at a time: each time the prompt is computed once.
#[test]
fn a_prompt_is_computed_once_for_all_that_run_together() {
    for (num_outputs, num_prefills) in [(8, 1), (9, 2), (64, 8), (65, 9)] {
        let mut spec = RigSpec::with_pool(256, 16);
        spec.options =
            spec.options.clone().max_num_seqs(8).enable_prefix_caching(false).async_scheduling(false);
        let rig = spec.start(|_, position| position as u32);
        let output = drain(rig.llm.stream(Request::new(vec![9; 7], outputs(num_outputs, 1))).unwrap());
        assert_eq!(output.outputs.len(), num_outputs as usize);
        let indices = output.outputs.iter().map(|output| output.index);
        assert!(indices.eq(0..num_outputs) && output.outputs.iter().all(|output| output.token_ids == [7]));
        let num_tokens: usize = rig.control.batches().iter().map(|batch| batch.num_tokens()).sum();
        // A fork computes the last token of the prompt, a first one all seven.
        assert_eq!(num_tokens, num_outputs as usize + 6 * num_prefills, "{num_outputs} outputs");
        rig.check_idle();
        rig.check_alive();
    }
}

#[test]
fn f_rig_a_dropped_request_ends_all_its_branches_at_every_point() {
    for num_events in 0..12 {
        let mut spec = RigSpec::with_pool(24, 4);
        spec.capacity.num_swap_blocks = 8;
        let rig = start(spec, Some(3), num_events % 2 == 0);
        let mut streams: Vec<_> =
            (0..4).map(|i| rig.llm.stream(Request::new(vec![20 + i; 9], outputs(3, 40))).unwrap()).collect();
        let kept = streams.split_off(2);
        for mut stream in streams {
            (0..num_events).for_each(|_| drop(stream.blocking_next()));
        }
        for (i, stream) in kept.into_iter().enumerate() {
            let expected = noise_output(&[22 + i as u32; 9], 40);
            assert!(drain(stream).outputs.iter().all(|output| output.token_ids == expected));
        }
        rig.check_idle();
        rig.check_alive();
    }
}

#[test]
fn a_failed_step_or_row_fails_the_whole_request_and_no_other() {
    let rig = RigSpec::default()
        .start(|prompt, position| if prompt[0] == 8 && position == 12 { NO_TOKEN } else { 50 });
    let request = |id: u32| Request::new(Prompt::TokenIds(vec![id; 9]), outputs(3, 6));
    let streams = [8, 9].map(|id| rig.llm.stream(request(id)).unwrap());
    let [bad, good] = streams.map(|mut stream| {
        std::iter::from_fn(move || stream.blocking_next()).last().expect("a stream ends with an event")
    });
    assert!(matches!(bad, RequestEvent::Failed(Error::Row { .. })), "{bad:?}");
    let RequestEvent::Finished(output) = good else { panic!("{good:?}") };
    assert!(output.outputs.iter().all(|output| output.token_ids == [50; 6]));
    rig.check_idle();
    let step = rig.control.batches().last().expect("steps ran").step;
    rig.control.fail_step(step + 4);
    let mut stream = rig.llm.stream(request(7)).unwrap();
    let last = std::iter::from_fn(|| stream.blocking_next()).last();
    assert!(matches!(last, Some(RequestEvent::Failed(Error::Executor(_)))), "{last:?}");
    rig.check_idle();
    rig.check_alive();
}
