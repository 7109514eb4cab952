//! The plain and the overlapped loop, under preemption and chunking.

use quire_engine::{EngineOptions, PreemptionMode, Request, SamplingParams};

use crate::rig::{Random, RigSpec, drain, noise, noise_output};

/// Every way of running gives the same tokens, each once and in order; and no batch ever read or wrote what it must
/// not, which the executor checks.
#[test]
fn run_ahead_equals_plain_under_preemption_and_chunks() {
    let (mut num_preemptions, mut num_swaps) = (0, 0);
    for (chunk, num_swap_blocks) in
        [(None, 0), (Some(1), 0), (Some(7), 0), (None, 64), (Some(1), 6), (Some(7), 64)]
    {
        for (num_blocks, block_size) in [(24, 4), (9, 8), (64, 4)] {
            for overlapped in [false, true] {
                let mut spec = RigSpec::with_pool(num_blocks, block_size);
                spec.capacity.num_swap_blocks = num_swap_blocks;
                let mut options: EngineOptions =
                    spec.options.clone().async_scheduling(overlapped).max_prefill_chunk(chunk);
                if num_swap_blocks > 0 {
                    options = options.swap_space(1.0).preemption_mode(PreemptionMode::Swap);
                }
                let rig = RigSpec { options, ..spec }.start(noise);
                let mut random = Random(7);
                let prompts: Vec<Vec<u32>> = (0..24)
                    .map(|i| (0..1 + random.below(30)).map(|j| 3 + ((i * 13 + j) % 256) as u32).collect())
                    .collect();
                let streams: Vec<_> = prompts
                    .iter()
                    .map(|prompt| {
                        rig.llm.stream(Request::new(prompt.clone(), SamplingParams::greedy(40))).unwrap()
                    })
                    .collect();
                for (prompt, stream) in prompts.iter().zip(streams) {
                    let output = drain(stream).1.outputs.remove(0);
                    let expected = noise_output(prompt, 40);
                    let room = num_blocks * block_size - prompt.len();
                    assert_eq!(output.token_ids, expected[..expected.len().min(room)]);
                }
                rig.check_idle();
                rig.check_alive();
                num_preemptions += rig.llm.stats().num_preemptions;
                num_swaps += rig.llm.stats().num_swaps;
                assert_eq!(rig.llm.stats().num_free_swap_blocks, num_swap_blocks);
            }
        }
    }
    assert!(num_preemptions > num_swaps && num_swaps > 0, "the pools are small enough");
}

#[test]
fn br_12_three_preemptions_lose_and_double_nothing() {
    let spec = RigSpec::with_pool(20, 4);
    let rig = RigSpec { options: spec.options.clone().max_prefill_chunk(Some(7)), ..spec }
        .start(|prompt, position| 3 + ((prompt[0] as usize + position) % 256) as u32);
    let prompts: Vec<Vec<u32>> = (0..4).map(|i| vec![60 + i; 8]).collect();
    let streams: Vec<_> = prompts
        .iter()
        .map(|prompt| rig.llm.stream(Request::new(prompt.clone(), SamplingParams::greedy(60))).unwrap())
        .collect();
    let mut most = 0;
    for (prompt, stream) in prompts.iter().zip(streams) {
        let (_, output) = drain(stream);
        most = most.max(output.metrics.num_preemptions);
        let expected: Vec<u32> =
            (8..68).map(|position| 3 + ((prompt[0] as usize + position) % 256) as u32).collect();
        assert_eq!(output.outputs[0].token_ids, expected);
    }
    assert!(most > 0);
    let stats = rig.llm.stats();
    assert_eq!(stats.num_generation_tokens, 4 * 60, "what is computed again is not counted again");
    assert_eq!(stats.num_first_tokens, 4);
    assert_eq!(stats.num_prompt_tokens, 4 * 8);
}

#[test]
fn two_steps_are_open_in_the_overlapped_loop() {
    let spec = RigSpec::default();
    let rig = spec.start(|_, _| 50);
    rig.control.hold();
    let stream = rig.llm.stream(Request::new("x", SamplingParams::greedy(4))).unwrap();
    // The second is submitted while the first is still held.
    while rig.control.batches().len() < 2 {
        std::thread::yield_now();
    }
    rig.control.go_on();
    assert_eq!(drain(stream).1.outputs[0].token_ids.len(), 4);
}
