//! Lengths, and what does not fit.

use quire_engine::{
    Error, ErrorKind, FinishReason, MaxModelLen, ParamError, Prompt, PromptError, SamplingParams,
};

use crate::rig::{Rig, RigSpec, VOCAB_SIZE, byte_tokens};

fn ids(len: usize) -> Prompt {
    Prompt::TokenIds(vec![9; len])
}

#[track_caller]
fn refusal(rig: &Rig, prompt: Prompt) -> PromptError {
    let error = rig.llm.generate([prompt], &SamplingParams::default()).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::BadRequest);
    let Error::InList { index: 0, source } = error else { panic!("{error:?}") };
    let Error::Prompt(error) = *source else { panic!("{source:?}") };
    rig.check_alive();
    error
}

#[test]
fn br_38_empty_and_long_prompts_are_errors() {
    let rig = RigSpec::with_pool(64, 4).start_with_bytes("abc");
    assert_eq!(refusal(&rig, Prompt::from("")), PromptError::Empty);
    assert_eq!(refusal(&rig, ids(0)), PromptError::Empty);
    assert_eq!(refusal(&rig, Prompt::from(Vec::<quire_engine::ChatMessage>::new())), PromptError::NoMessages);
    let spec = RigSpec::with_pool(64, 4);
    let options = spec.options.clone().max_model_len(MaxModelLen::Tokens(100));
    let rig = RigSpec { options, ..spec }.start_with_bytes("abc");
    assert_eq!(refusal(&rig, ids(100)), PromptError::TooLong { num_tokens: 100, max_model_len: 100 });
    let message = refusal(&rig, ids(4000)).to_string();
    assert!(message.contains("4000") && message.contains("99"), "{message}");
    let output = rig.llm.generate([ids(99)], &SamplingParams::greedy(1)).unwrap().remove(0);
    assert_eq!(output.outputs[0].finish_reason, FinishReason::Length);
}

#[test]
fn br_01_a_prompt_larger_than_the_pool_is_an_error_and_blocks_nobody() {
    let spec = RigSpec::with_pool(8, 16);
    let mut capacity = spec.capacity.clone();
    capacity.max_model_len = 256;
    let rig = RigSpec { capacity, ..spec }.start_with_bytes("abc");
    assert_eq!(
        refusal(&rig, ids(200)),
        PromptError::NeverFits { num_tokens: 200, need: 13, have: 8, pinnable: 0 }
    );
    // Both limits are passed: the tighter is told.
    let tighter = PromptError::NeverFits { num_tokens: 501, need: 32, have: 8, pinnable: 0 };
    assert_eq!(refusal(&rig, ids(501)), tighter);
    assert_eq!(rig.llm.generate([ids(10)], &SamplingParams::greedy(8)).unwrap()[0].outputs[0].text, "abc");
}

#[test]
fn br_05_the_last_request_ends_at_the_edge_of_the_pool() {
    for spec in [RigSpec::with_pool(8, 16), RigSpec::with_pool(8, 16).plain()] {
        let rig = spec.start(|_, _| 50);
        let output =
            rig.llm.generate([ids(100)], &SamplingParams::greedy(60)).unwrap().remove(0).outputs.remove(0);
        assert_eq!((output.token_ids.len(), output.finish_reason), (28, FinishReason::Length));
        rig.check_idle();
        let output = rig.llm.generate([ids(10)], &SamplingParams::greedy(5)).unwrap().remove(0);
        assert_eq!(output.outputs[0].token_ids.len(), 5);
    }
}

#[test]
fn br_36_token_ids_out_of_the_vocabulary_are_errors_of_their_request() {
    let rig = RigSpec::default().start_with_bytes("abc");
    let params = SamplingParams { repetition_penalty: 1.1, ..SamplingParams::default() };
    for given in [VOCAB_SIZE as u32, u32::MAX] {
        let expected = PromptError::TokenId { index: 1, given, vocab_size: VOCAB_SIZE };
        assert_eq!(refusal(&rig, Prompt::TokenIds(vec![5, given])), expected);
    }
    let requests = [vec![5], vec![VOCAB_SIZE as u32], vec![7]];
    let requests = requests.map(|ids| quire_engine::Request::new(ids, params.clone())).into();
    let results = rig.llm.generate_each(requests);
    assert_eq!(results[0].as_ref().unwrap().outputs[0].text, "abc");
    assert!(results[1].is_err());
    assert_eq!(results[2].as_ref().unwrap().outputs[0].text, "abc");
}

#[test]
fn br_39_max_tokens_absent_zero_and_huge() {
    let rig = RigSpec::with_pool(16, 4).start(|_, _| 50);
    let run = |max_tokens| {
        let params = SamplingParams { max_tokens, ..SamplingParams::default() };
        rig.llm
            .generate([ids(10)], &params)
            .map(|mut outputs| outputs.remove(0).outputs.remove(0).token_ids.len())
    };
    assert_eq!(run(None).unwrap(), 54);
    assert_eq!(run(Some(1_000_000_000)).unwrap(), 54);
    assert_eq!(run(Some(u64::MAX)).unwrap(), 54);
    assert_eq!(run(SamplingParams::default().max_tokens).unwrap(), 16);
    let Err(Error::InList { source, .. }) = run(Some(0)) else { panic!("0 is refused") };
    assert!(matches!(*source, Error::Param(ParamError::Value { field: "max_tokens", .. })));
}

#[test]
fn br_10_more_than_may_wait_are_refused_at_once() {
    let spec = RigSpec::default();
    let rig = RigSpec { options: spec.options.clone().max_num_waiting(4), ..spec }.start_with_bytes("abc");
    rig.control.hold();
    let mut streams = Vec::new();
    let mut refused = 0;
    for _ in 0..50 {
        match rig.llm.stream(quire_engine::Request::new("x", SamplingParams::default())) {
            Ok(stream) => streams.push(stream),
            Err(error) => {
                assert!(matches!(error, Error::Overloaded { num_waiting: 4, max_num_waiting: 4 }), "{error}");
                refused += 1;
            }
        }
    }
    rig.control.go_on();
    assert_eq!(refused + streams.len(), 50);
    assert_eq!(streams.len(), 4 + rig.llm.config().max_num_seqs.min(8));
    for stream in streams {
        assert_eq!(crate::rig::drain(stream).1.outputs[0].text, "abc");
    }
    // A list is not refused for its length: it waits for its turn.
    let outputs = rig.llm.generate(vec!["x"; 40], &SamplingParams::default()).unwrap();
    assert_eq!(outputs.len(), 40);
}

#[test]
fn a_prompt_is_cut_to_its_end() {
    let rig = RigSpec::default().start(|_, _| 50);
    let longest = rig.llm.model().max_model_len - 1;
    for (given, kept) in [(3, 3), (1000, 300), (-1, longest.min(300))] {
        let params = SamplingParams { truncate_prompt_tokens: Some(given), ..SamplingParams::greedy(1) };
        let prompt: Vec<u32> = (0..300).map(|i| 3 + i % 250).collect();
        match rig.llm.generate([prompt.clone()], &params) {
            Ok(outputs) => assert_eq!(outputs[0].prompt_token_ids, prompt[300 - kept..]),
            Err(_) => assert!(kept > longest, "{given}"),
        }
    }
}

#[test]
fn a_prompt_that_is_cut_to_what_fits_leaves_room_for_its_output() {
    let rig = RigSpec::default().start(|_, _| 50);
    let context = rig.llm.model().max_model_len;
    let prompt: Vec<u32> = (0..context as u32 + 20).map(|i| 3 + i % 250).collect();
    for (max_tokens, min_tokens, left) in
        [(Some(1), 0, 1), (Some(40), 0, 40), (None, 0, 1), (None, 5, 5), (Some(context as u64), 0, 1)]
    {
        let params = SamplingParams {
            truncate_prompt_tokens: Some(-1),
            max_tokens,
            min_tokens,
            ..SamplingParams::greedy(1)
        };
        let output = rig.llm.generate([prompt.clone()], &params).unwrap().remove(0);
        assert_eq!(output.prompt_token_ids, prompt[20 + left..], "{max_tokens:?}");
        assert_eq!(output.outputs[0].token_ids.len(), left);
    }
}

#[test]
fn a_bad_word_is_forbidden_at_the_device() {
    let rig = RigSpec::default().start(|_, _| 50);
    let bad_words = |words: &[&str]| SamplingParams {
        bad_words: words.iter().map(|word| (*word).to_owned()).collect(),
        ..SamplingParams::greedy(1)
    };
    rig.generate(bad_words(&["A"]));
    let batches = rig.control.batches();
    let bias = &batches.last().unwrap().added[0].sampling.logit_bias;
    assert!(bias.contains(&(byte_tokens("A")[0], f32::NEG_INFINITY)), "{bias:?}");
    let allowed = SamplingParams { allowed_token_ids: Some(vec![60, 61, 60]), ..SamplingParams::greedy(1) };
    assert_eq!(rig.generate(allowed).outputs[0].token_ids, [60]);
    assert_eq!(rig.control.batches().last().unwrap().added[0].sampling.allowed_token_ids, Some(vec![60, 61]));
}
