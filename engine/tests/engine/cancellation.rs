//! Requests that are given up.

use quire_engine::{EngineClient, FinishReason, Prompt, Request, RequestEvent, SamplingParams};

use crate::rig::{Random, RigSpec, drain, noise, noise_output};

fn prompts(num: usize, random: &mut Random) -> Vec<Vec<u32>> {
    (0..num)
        .map(|i| (0..1 + random.below(40)).map(|j| 3 + ((i * 31 + j * 7) % 256) as u32).collect())
        .collect()
}

#[test]
fn br_42_half_of_the_streams_are_dropped_and_the_others_are_exact() {
    for seed in 0..8_u64 {
        let spec = RigSpec::with_pool(40, 4);
        let spec = if seed % 2 == 0 { spec } else { spec.plain() };
        let rig = spec.start(noise);
        let mut random = Random(seed + 1);
        let params = SamplingParams { max_tokens: Some(30), ..SamplingParams::default() };
        let prompts = prompts(100, &mut random);
        let streams: Vec<_> = prompts
            .iter()
            .map(|prompt| rig.llm.stream(Request::new(prompt.clone(), params.clone())).unwrap())
            .collect();
        let mut kept = Vec::new();
        for (i, mut stream) in streams.into_iter().enumerate() {
            if i % 2 == 0 {
                kept.push((i, stream));
                continue;
            }
            // Queued, running or ended: wherever it is.
            for _ in 0..random.below(4) {
                stream.blocking_next();
            }
        }
        for (i, stream) in kept {
            let (_, output) = drain(stream);
            assert_eq!(
                output.outputs[0].token_ids,
                noise_output(&prompts[i], 30),
                "request {i} of seed {seed}"
            );
        }
        rig.check_idle();
        rig.check_alive();
        let stats = rig.llm.stats();
        assert_eq!(stats.num_finished.values().sum::<u64>(), stats.num_requests);
    }
}

#[test]
fn br_41_a_dropped_stream_frees_its_blocks_within_a_step() {
    let rig = RigSpec::default().start(|_, _| 50);
    rig.control.set_delay(std::time::Duration::from_millis(1));
    let params = SamplingParams { max_tokens: None, ..SamplingParams::default() };
    let mut stream = rig.llm.stream(Request::new(Prompt::TokenIds(vec![9; 100]), params)).unwrap();
    assert!(matches!(stream.blocking_next(), Some(RequestEvent::Delta(_))));
    drop(stream);
    rig.check_idle();
    assert_eq!(rig.llm.stats().num_finished[&FinishReason::Abort], 1);
    let stats = rig.llm.stats();
    assert_eq!(stats.num_live_blocks + stats.num_cached_blocks + stats.num_free_blocks, 64);
    rig.check_alive();
}

#[test]
fn br_41_a_request_dropped_while_queued_never_runs() {
    let spec = RigSpec::default();
    let rig = RigSpec { options: spec.options.clone().max_num_seqs(1), ..spec }.start_with_bytes("abc");
    rig.control.hold();
    let first =
        rig.llm.stream(Request::new(Prompt::TokenIds(vec![9; 5]), SamplingParams::default())).unwrap();
    let queued =
        rig.llm.stream(Request::new(Prompt::TokenIds(vec![77; 5]), SamplingParams::default())).unwrap();
    drop(queued);
    rig.control.go_on();
    assert_eq!(drain(first).1.outputs[0].text, "abc");
    rig.check_idle();
    let ran = rig.control.batches().iter().any(|batch| batch.added.iter().any(|row| row.token_ids[0] == 77));
    assert!(!ran);
}

#[test]
fn a_client_in_an_asynchronous_program() {
    let rig = RigSpec::default().start_with_bytes("abc");
    let client = rig.llm.to_async();
    let client: &dyn EngineClient = &client;
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        client.health().unwrap();
        assert_eq!(client.model().architecture, "Scripted");
        let output = client.generate(Request::new("x", SamplingParams::default())).await.unwrap();
        assert_eq!(output.outputs[0].text, "abc");
        let mut stream = client.submit(Request::new("x", SamplingParams::default())).await.unwrap();
        assert!(matches!(stream.next().await, Some(RequestEvent::Delta(delta)) if delta.text == "a"));
        drop(stream);
        let ids = client.tokenize("hé".into()).await.unwrap();
        assert_eq!(client.detokenize(ids).await.unwrap(), "hé");
        assert!(client.detokenize(vec![300]).await.is_err());
    });
    rig.check_idle();
}

#[test]
fn what_is_prepared_has_a_place_and_leaves_nothing_behind() {
    let spec = RigSpec::default();
    let rig = RigSpec { options: spec.options.clone().max_num_seqs(1).max_num_waiting(1), ..spec }
        .start_with_bytes("abc");
    let client = rig.llm.to_async();
    let request = || Request::new("hé", SamplingParams::default());
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    runtime.block_on(async {
        let first = client.prepare(request()).await.unwrap();
        let second = client.prepare(request()).await.unwrap();
        assert_eq!(first.prompt(), client.tokenize("hé".into()).await.unwrap());
        let full = client.prepare(request()).await.unwrap_err();
        assert!(matches!(full, quire_engine::Error::Overloaded { num_waiting: 1, .. }), "{full}");
        assert_eq!(rig.llm.stats().num_requests, 0);
        drop(first);
        assert_eq!(second.start().unwrap().finish().await.unwrap().outputs[0].text, "abc");
        let wrong = SamplingParams { temperature: -1.0, ..SamplingParams::default() };
        assert!(client.prepare(Request::new("a", wrong)).await.is_err());
    });
    rig.check_idle();
    assert_eq!(rig.llm.stats().num_requests, 1);
}

#[test]
fn long_prompts_are_read_as_short_ones_are() {
    let rig = RigSpec::default().start_with_bytes("abc");
    let client = rig.llm.to_async();
    let text = "hé ".repeat(10_000);
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let tokens = runtime.block_on(client.tokenize(text.as_str().into())).unwrap();
    assert_eq!(tokens, rig.llm.tokenize(text).unwrap());
}
