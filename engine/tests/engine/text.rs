//! Stop conditions and text, from the executor's tokens to the user's characters.

use quire_engine::{
    ChatMessage, ChatPrompt, EosTokens, FinishReason, Prompt, Request, RequestOutput, SamplingParams,
    StopReason,
};
use quire_models::testing::TinyTokenizer;

use crate::rig::{EOS, FIRST_LONGER, Rig, RigSpec, VOCAB_SIZE, byte_tokens, drain, tokenizer_with};

fn stop(texts: &[&str]) -> SamplingParams {
    SamplingParams {
        stop: texts.iter().map(|&text| text.to_owned()).collect(),
        max_tokens: None,
        ..SamplingParams::default()
    }
}

#[track_caller]
fn check(output: &RequestOutput, text: &str, reason: FinishReason, stop_reason: Option<StopReason>) {
    let output = &output.outputs[0];
    assert_eq!((output.text.as_str(), output.finish_reason), (text, reason));
    assert_eq!(output.stop_reason, stop_reason);
}

#[test]
fn br_25_the_head_of_a_stop_string_is_not_shown() {
    let rig = RigSpec::default().start_with_bytes("ABCDEFGHIJKLM");
    let stopped = Some(StopReason::Text("DEFGHIJ".into()));
    check(&rig.generate(stop(&["DEFGHIJ"])), "ABC", FinishReason::Stop, stopped.clone());
    let (pieces, output) = rig.stream(stop(&["DEFGHIJ"]));
    check(&output, "ABC", FinishReason::Stop, stopped);
    assert_eq!(pieces, ["A", "B", "C", ""]);
    // All tokens count, those whose text was cut too.
    assert_eq!(output.outputs[0].token_ids, byte_tokens("ABCDEFGHIJ"));
    let cut = SamplingParams { max_tokens: Some(9), ..stop(&["DEFGHIJ"]) };
    check(&rig.generate(cut), "ABCDEFGHI", FinishReason::Length, None);
    let shown = SamplingParams { include_stop_str_in_output: true, ..stop(&["DEFGHIJ"]) };
    check(&rig.generate(shown), "ABCDEFGHIJ", FinishReason::Stop, Some(StopReason::Text("DEFGHIJ".into())));
    rig.check_idle();
}

#[test]
fn br_25_a_stop_string_spans_tokens_of_several_characters() {
    let spec = || RigSpec { tokenizer: tokenizer_with(&["ABC", "DEF", "GHI"]), ..RigSpec::default() };
    let tokens: Vec<u32> = (FIRST_LONGER..FIRST_LONGER + 3).chain(byte_tokens("J")).collect();
    let rig = spec().start_with_tokens(tokens.clone());
    let (pieces, output) = rig.stream(stop(&["DEFGHIJ"]));
    check(&output, "ABC", FinishReason::Stop, Some(StopReason::Text("DEFGHIJ".into())));
    assert_eq!(
        (pieces, output.outputs[0].token_ids.clone()),
        (vec!["ABC".to_owned(), String::new()], tokens)
    );
    assert_eq!(rig.generate(stop(&["DEFGHIJ"])).outputs, output.outputs);
    // What was held back is text after all.
    let cut = SamplingParams { max_tokens: Some(3), ..stop(&["DEFGHIJ"]) };
    let (pieces, output) = rig.stream(cut);
    check(&output, "ABCDEFGHI", FinishReason::Length, None);
    assert_eq!(pieces, ["ABC", "DEFGHI"]);
}

#[test]
fn br_27_no_piece_is_empty_before_the_end() {
    let rig = RigSpec::default().start_with_bytes("ab\n\nUs\n\nUser:c");
    let (pieces, output) = rig.stream(stop(&["\n\nUser:"]));
    assert!(pieces[..pieces.len() - 1].iter().all(|piece| !piece.is_empty()), "{pieces:?}");
    assert_eq!(output.outputs[0].text, "ab\n\nUs");
    assert_eq!(rig.generate(stop(&["\n\nUser:"])).outputs[0].text, "ab\n\nUs");
}

#[test]
fn br_28_no_piece_holds_half_a_character() {
    let rig = RigSpec::default().start_with_bytes("你好🙂é");
    let (pieces, output) = rig.stream(stop(&[]));
    assert_eq!(pieces, ["你", "好", "🙂", "é", ""]);
    check(&output, "你好🙂é", FinishReason::Stop, None);
    for max_tokens in 1..12 {
        let params = SamplingParams { max_tokens: Some(max_tokens), ..stop(&[]) };
        let whole = rig.generate(params.clone()).outputs.remove(0);
        let (pieces, streamed) = rig.stream(params);
        assert_eq!(streamed.outputs[0], whole);
        assert!(pieces[..pieces.len() - 1].iter().all(|piece| !piece.contains('\u{FFFD}')), "{pieces:?}");
    }
    let rig = RigSpec::default().start_with_bytes(b"a\xFFb");
    assert_eq!(rig.stream(stop(&[])).0, ["a", "\u{FFFD}", "b", ""]);
}

/// A character that the end leaves unfinished is U+FFFD, which a stop string may have.
#[test]
fn a_stop_string_may_end_with_what_the_end_leaves() {
    for (bytes, max_tokens) in [(&b"ab\xF0\x9F"[..], 4), (b"ab\xF0\x9Fcd", 4), (b"ab\xF0\x9F", 20)] {
        let rig = RigSpec::default().start_with_bytes(bytes);
        for (stops, text) in
            [(&["b\u{FFFD}"][..], "a"), (&["\u{FFFD}"], "ab"), (&["\u{FFFD}x", "c"], "ab\u{FFFD}")]
        {
            let params = SamplingParams { max_tokens: Some(max_tokens), ..stop(stops) };
            let (pieces, output) = rig.stream(params);
            let one = &output.outputs[0];
            assert_eq!((one.text.as_str(), pieces.concat().as_str()), (text, text));
            let is_met = text != "ab\u{FFFD}";
            let reason = is_met.then(|| StopReason::Text(stops[0].into()));
            assert_eq!(one.stop_reason, reason, "{bytes:x?} {stops:?}");
            let length = max_tokens == 4 && !is_met;
            assert_eq!(one.finish_reason, if length { FinishReason::Length } else { FinishReason::Stop });
        }
        rig.check_idle();
    }
}

#[test]
fn ids_outside_of_the_vocabulary_are_nothing() {
    // The model's vocabulary is larger than the tokenizer's.
    let rig =
        RigSpec::default().start_with_tokens(vec![TinyTokenizer::byte(b'a'), 299, TinyTokenizer::byte(b'b')]);
    check(&rig.generate(stop(&[])), "ab", FinishReason::Stop, None);
}

#[test]
fn br_30_nothing_ends_before_min_tokens() {
    let generation = EosTokens { silent: [EOS].into(), told: [7].into() };
    let rig = RigSpec { eos: generation, ..RigSpec::default() }
        .start(|prompt, position| if (position - prompt.len()).is_multiple_of(2) { EOS } else { 7 });
    let params = SamplingParams { min_tokens: 20, max_tokens: Some(40), ..SamplingParams::default() };
    let prompts = [Prompt::TokenIds(vec![50; 50])];
    let output = rig.llm.generate(prompts, &params).unwrap().remove(0).outputs.remove(0);
    assert_eq!(output.token_ids.len(), 21);
    assert!(output.token_ids[..20].iter().all(|id| ![EOS, 7].contains(id)));
    assert_eq!(
        (output.token_ids[20], output.finish_reason, output.stop_reason),
        (EOS, FinishReason::Stop, None)
    );

    let last = VOCAB_SIZE as u32 - 1;
    let rig = RigSpec::default().start(move |_, _| last);
    let params = SamplingParams { ignore_eos: true, max_tokens: Some(5), ..SamplingParams::default() };
    assert_eq!(rig.generate(params).outputs[0].token_ids, [last; 5]);
}

#[test]
fn stop_strings_wait_for_min_tokens_too() {
    let rig = RigSpec::default().start_with_bytes("abSTOPcdSTOP");
    let params = SamplingParams { min_tokens: 10, ..stop(&["STOP"]) };
    check(&rig.generate(params), "abSTOPcd", FinishReason::Stop, Some(StopReason::Text("STOP".into())));
}

#[test]
fn br_31_end_tokens_of_all_sources_end_and_are_hidden() {
    let eos = EosTokens { silent: [EOS].into(), told: [1].into() };
    let tokens = |end| vec![TinyTokenizer::byte(b'x'), end, TinyTokenizer::byte(b'y')];
    for (end, stop_reason) in [(EOS, None), (1, Some(StopReason::Token(1)))] {
        let rig = RigSpec { eos: eos.clone(), ..RigSpec::default() }.start_with_tokens(tokens(end));
        let output = rig.generate(SamplingParams { skip_special_tokens: false, ..stop(&[]) });
        check(&output, "x", FinishReason::Stop, stop_reason);
        assert_eq!(output.outputs[0].token_ids, tokens(end)[..2]);
    }
}

#[test]
fn a_stop_token_is_told_and_hidden_unless_asked_for() {
    let rig = RigSpec::default().start_with_bytes("abcd");
    let params = SamplingParams { stop_token_ids: byte_tokens("c"), ..stop(&[]) };
    let told = || Some(StopReason::Token(byte_tokens("c")[0]));
    check(&rig.generate(params.clone()), "ab", FinishReason::Stop, told());
    let shown = SamplingParams { include_stop_str_in_output: true, ..params };
    check(&rig.generate(shown), "abc", FinishReason::Stop, told());
}

#[test]
fn special_tokens_are_skipped_on_request() {
    let rig = RigSpec::default().start_with_tokens([byte_tokens("a"), vec![1], byte_tokens("b")].concat());
    assert_eq!(rig.generate(stop(&[])).outputs[0].text, "ab");
    let shown = SamplingParams { skip_special_tokens: false, ..stop(&[]) };
    assert_eq!(rig.generate(shown).outputs[0].text, "a<|im_start|>b");
}

#[test]
fn without_detokenizing_tokens_come_one_by_one_and_there_is_no_text() {
    let rig = RigSpec::default().start_with_bytes("abc");
    let params = SamplingParams { detokenize: false, ..stop(&[]) };
    let (pieces, output) = rig.stream(params.clone());
    assert_eq!(pieces, ["", "", "", ""]);
    check(&output, "", FinishReason::Stop, None);
    assert_eq!(output.outputs[0].token_ids.len(), 4);
    let with_stop = SamplingParams { stop: vec!["b".into()], ..params };
    let error = rig.llm.generate(["x"], &with_stop).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert!(cause.contains("stop is [\"b\"]: expected none where detokenize is false"), "{cause}");
}

#[test]
fn logprobs_come_with_each_token_and_for_the_prompt() {
    let rig = RigSpec::default().start_with_bytes("abc");
    let params = SamplingParams { logprobs: Some(2), prompt_logprobs: Some(0), ..stop(&[]) };
    for _ in 0..2 {
        let output = rig.llm.generate(["xyz"], &params).unwrap().remove(0);
        assert_eq!(output.num_cached_tokens, 0, "prompt log-probabilities need the prompt computed");
        let prompt = output.prompt_logprobs.unwrap();
        let ids: Vec<_> =
            prompt.iter().map(|entry| entry.as_ref().map(|entry| entry.token.token_id)).collect();
        assert_eq!(ids, [None, Some(byte_tokens("y")[0]), Some(byte_tokens("z")[0])]);
        let output = &output.outputs[0];
        let logprobs = output.logprobs.as_ref().unwrap();
        assert_eq!(logprobs.len(), output.token_ids.len());
        assert_eq!((logprobs[0].token.token.as_str(), logprobs[0].top.len()), ("a", 2));
        assert!((output.cumulative_logprob.unwrap() + 4.0 * std::f64::consts::LN_2).abs() < 1e-6);
    }
}

#[test]
fn br_13_prompt_logprobs_survive_chunks_and_preemptions() {
    let prompt: Vec<u32> = (3..75).collect();
    let params =
        SamplingParams { prompt_logprobs: Some(1), max_tokens: Some(60), ignore_eos: true, ..stop(&[]) };
    let spec = RigSpec::with_pool(40, 4);
    let rig = RigSpec { options: spec.options.max_prefill_chunk(Some(7)), ..spec }.start_with_bytes("");
    let outputs = rig.llm.generate(vec![prompt.clone(); 2], &params).unwrap();
    assert!(rig.llm.stats().num_preemptions > 0, "the pool is small enough");
    for output in outputs {
        let entries = output.prompt_logprobs.unwrap();
        let ids: Vec<_> =
            entries.iter().map(|entry| entry.as_ref().map(|entry| entry.token.token_id)).collect();
        let expected: Vec<_> = std::iter::once(None).chain(prompt[1..].iter().copied().map(Some)).collect();
        assert_eq!(ids, expected);
    }
}

#[test]
fn a_conversation_is_rendered_once() {
    let rig: Rig = RigSpec::default().start_with_bytes("Hi");
    let outputs = rig.llm.chat([vec![ChatMessage::user("Hello")]], &stop(&[])).unwrap();
    let expected = "<|im_start|>user\nHello<|im_end|>\n<|im_start|>assistant\n";
    assert_eq!(outputs[0].prompt.as_deref(), Some(expected));
    assert_eq!(rig.llm.detokenize(&outputs[0].prompt_token_ids).unwrap(), expected);
    let ids = rig.llm.tokenize(vec![ChatMessage::user("Hello")]).unwrap();
    assert_eq!(ids, outputs[0].prompt_token_ids);
    assert_eq!(ids.iter().filter(|&&id| id == TinyTokenizer::IM_START).count(), 2);
}

#[test]
fn br_44_a_template_refuses_in_its_own_words() {
    let template = "{{ raise_exception('roles must alternate') }}".to_owned();
    let rig = RigSpec { chat_template: Some(template), ..RigSpec::default() }.start_with_bytes("a");
    let error = rig.llm.chat([vec![ChatMessage::user("a")]], &stop(&[])).unwrap_err();
    let cause = std::error::Error::source(&error).unwrap().to_string();
    assert_eq!(
        cause,
        "the chat template refused the conversation: roles must alternate (line 1 of the template)"
    );
    assert_eq!(error.kind(), quire_engine::ErrorKind::BadRequest);
    let own = ChatPrompt {
        chat_template: Some("{{ messages[0].content }}".into()),
        ..ChatPrompt::new(vec![ChatMessage::user("a")])
    };
    let (_, output) = drain(rig.llm.stream(Request::new(Prompt::Chat(own), stop(&[]))).unwrap());
    assert_eq!(output.prompt.as_deref(), Some("a"));
    rig.check_alive();
}
