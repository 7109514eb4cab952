//! Tool calls and reasoning, whole and in every split (BR-45).

use proptest::prelude::*;
use quire_engine::chat::{
    ChatDelta, ChatOutput, ChatParser, ChatParserOptions, ReasoningFormat, ReasoningPlace, ToolCall,
    ToolFormat, ToolParsing,
};

fn auto(format: ToolFormat) -> ChatParserOptions {
    let names = vec!["now".to_owned(), "add".to_owned()];
    ChatParserOptions { tools: ToolParsing::Auto { format, names }, ..ChatParserOptions::default() }
}

fn thinking(reasoning: ReasoningFormat) -> ChatParserOptions {
    ChatParserOptions { reasoning: Some(reasoning), ..auto(ToolFormat::Hermes) }
}

/// What a text says, read in pieces.
fn read<'a>(options: &ChatParserOptions, pieces: impl IntoIterator<Item = &'a str>) -> ChatOutput {
    let mut parser = ChatParser::new(options.clone());
    let (mut output, mut num_calls) = (ChatOutput::default(), 0);
    let mut take = |delta: ChatDelta| {
        match &delta {
            ChatDelta::Reasoning(text) | ChatDelta::Content(text) => assert!(!text.is_empty()),
            ChatDelta::ToolCall { index, .. } => {
                assert_eq!(*index, num_calls, "each call is announced once");
                num_calls += 1;
            }
            ChatDelta::Arguments { index, part } => assert!(*index + 1 == num_calls && !part.is_empty()),
        }
        output.push(delta);
    };
    pieces.into_iter().for_each(|piece| parser.push(piece).into_iter().for_each(&mut take));
    parser.finish().into_iter().for_each(&mut take);
    assert_eq!(parser.num_tool_calls(), output.tool_calls.len());
    output
}

/// Each character alone, and all splits into two.
fn check_splits(options: &ChatParserOptions, text: &str) -> ChatOutput {
    let whole = ChatParser::parse(options.clone(), text);
    assert_eq!(read(options, text.split_inclusive(|_| true)), whole, "{text}: a character at a time");
    for (at, _) in text.char_indices() {
        let (front, back) = text.split_at(at);
        assert_eq!(read(options, [front, back]), whole, "{front:?} and {back:?}");
    }
    whole
}

/// A text, its content, and its calls as name and arguments.
type Case = (&'static str, Option<&'static str>, &'static [(&'static str, &'static str)]);

#[track_caller]
fn check(format: ToolFormat, cases: &[Case]) {
    for (text, content, calls) in cases {
        let output = check_splits(&auto(format), text);
        assert_eq!(output.content.as_deref(), *content, "{text}");
        let found: Vec<_> =
            output.tool_calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
        assert_eq!(found, *calls, "{text}");
    }
}

const HERMES: &[Case] = &[
    ("no call", Some("no call"), &[]),
    (
        "<tool_call>\n{\"name\": \"now\", \"arguments\": {}}\n</tool_call>\n<tool_call>\n{\"name\": \"add\", \"arguments\": {\"a\":1}}\n</tool_call>",
        None,
        &[("now", "{}"), ("add", "{\"a\":1}")],
    ),
    ("I look.\n<tool_call>{\"name\": \"now\"}</tool_call>\n", Some("I look."), &[("now", "{}")]),
    ("a\n<tool_call>{\"name\":\"now\"}</tool_call> b", Some("a b"), &[("now", "{}")]),
    (
        "<tool_call>{\"arguments\": {\"s\": \"}</tool_call>\\\"\"}, \"name\": \"add\"}</tool_call>",
        None,
        &[("add", "{\"s\": \"}</tool_call>\\\"\"}")],
    ),
    (
        "<tool_call>{\"name\": \"add\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>",
        None,
        &[("add", "{\"a\": 1}")],
    ),
    ("<tool_call>{\"name\": \"add\", \"arguments\": null}</tool_call>", None, &[("add", "{}")]),
    (
        "<tool_call>{\"id\": [1, {}], \"name\": \"né\\u00e9\", \"arguments\": {\"a\": \"é🙂\"}, \"x\": 1}</tool_call>",
        None,
        &[("néé", "{\"a\": \"é🙂\"}")],
    ),
    // Without its end it is a call all the same, as far as it went.
    ("<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 1", None, &[("add", "{\"a\": 1")]),
    ("<tool_call>{\"name\": \"now\"}<tool_call>{\"name\": \"now\"}", None, &[("now", "{}"), ("now", "{}")]),
    // What only looks like a call.
    ("use <tool_call> like this", Some("use <tool_call> like this"), &[]),
    ("<tool_call>{\"name\": 5}</tool_call>", Some("<tool_call>{\"name\": 5}</tool_call>"), &[]),
    ("<tool_call> {\"nam", Some("<tool_call> {\"nam"), &[]),
    ("<tool_call>{\"a\": 1}</tool_call>", Some("<tool_call>{\"a\": 1}</tool_call>"), &[]),
    (
        "<tool_call>{\"name\": <tool_call>{\"name\": \"now\"}</tool_call>",
        Some("<tool_call>{\"name\":"),
        &[("now", "{}")],
    ),
    ("1 <tool_cal", Some("1 <tool_cal"), &[]),
    ("", None, &[]),
    (" \n", Some(" \n"), &[]),
];

const LLAMA3_JSON: &[Case] = &[
    ("{\"name\": \"add\", \"parameters\": {\"a\": 1}}", None, &[("add", "{\"a\": 1}")]),
    (
        "<|python_tag|>{\"name\": \"now\", \"parameters\": {}}; {\"type\": \"function\", \"name\": \"add\", \"arguments\": {\"a\": [1]}}",
        None,
        &[("now", "{}"), ("add", "{\"a\": [1]}")],
    ),
    ("{\"name\": \"add\", \"parameters\": {\"a\": 1", None, &[("add", "{\"a\": 1")]),
    // What only looks like a call.
    ("{\"name\": \"Bob\", \"parameters\": {}}", Some("{\"name\": \"Bob\", \"parameters\": {}}"), &[]),
    ("{\"name\": \"add\", \"age\": 5}", Some("{\"name\": \"add\", \"age\": 5}"), &[]),
    (" {\"a\": 1} and so on", Some(" {\"a\": 1} and so on"), &[]),
    (
        "Well: {\"name\": \"add\", \"parameters\": {}}",
        Some("Well: {\"name\": \"add\", \"parameters\": {}}"),
        &[],
    ),
    ("<|python_tag|>print(1)", Some("<|python_tag|>print(1)"), &[]),
    ("<|python_ta", Some("<|python_ta"), &[]),
    ("{\"name\": \"now\", \"parameters\": {}} done", Some(" done"), &[("now", "{}")]),
];

const MISTRAL: &[Case] = &[
    (
        "[TOOL_CALLS][{\"name\": \"now\", \"arguments\": {}}, {\"name\": \"add\", \"arguments\": {\"a\": 1}}]",
        None,
        &[("now", "{}"), ("add", "{\"a\": 1}")],
    ),
    (
        "Sure. [TOOL_CALLS] [{\"arguments\": {\"a\": 1}, \"name\": \"add\"}]",
        Some("Sure."),
        &[("add", "{\"a\": 1}")],
    ),
    ("[TOOL_CALLS]add{\"a\": \"]\"}[TOOL_CALLS]now{}", None, &[("add", "{\"a\": \"]\"}"), ("now", "{}")]),
    ("[TOOL_CALLS]add[CALL_ID]123abc789[ARGS]{\"a\": 1}", None, &[("add", "{\"a\": 1}")]),
    ("[TOOL_CALLS][{\"name\": \"add\", \"arguments\": {\"a\"", None, &[("add", "{\"a\"")]),
    // What only looks like a call.
    ("[TOOL_CALLS] what?", Some("[TOOL_CALLS] what?"), &[]),
    ("[TOOL_CALLS][1, 2]", Some("[TOOL_CALLS][1, 2]"), &[]),
    ("[TOOL_CALLS][]", Some("[TOOL_CALLS][]"), &[]),
    ("an [array] of [TOOL", Some("an [array] of [TOOL"), &[]),
];

const PYTHONIC: &[Case] = &[
    (
        "[now(), add(a=1, b='it\\'s', c=[True, None, {\"x\": 2.5}])]",
        None,
        &[("now", "{}"), ("add", "{\"a\": 1, \"b\": \"it's\", \"c\": [true,null,{\"x\":2.5}]}")],
    ),
    ("<|python_start|>[now()]<|python_end|>", None, &[("now", "{}")]),
    ("[add(a=\"x)]\")]", None, &[("add", "{\"a\": \"x)]\"}")]),
    ("[add(a=1, b=", None, &[("add", "{\"a\": 1")]),
    // What only looks like a call.
    ("[1, 2]", Some("[1, 2]"), &[]),
    ("[print(x=1)]", Some("[print(x=1)]"), &[]),
    ("[add(1)]", Some("[add(1)]"), &[]),
    ("[add(a=b)]", Some("[add(a=b)]"), &[]),
    ("see [add(a=1)]", Some("see [add(a=1)]"), &[]),
    ("[]", Some("[]"), &[]),
    ("[now", Some("[now"), &[]),
    ("[now() then", Some(" then"), &[("now", "{}")]),
];

#[test]
fn br_45_calls_of_every_format_are_read_alike_in_every_split() {
    check(ToolFormat::Hermes, HERMES);
    check(ToolFormat::Llama3Json, LLAMA3_JSON);
    check(ToolFormat::Mistral, MISTRAL);
    check(ToolFormat::Pythonic, PYTHONIC);
}

#[test]
fn br_45_deltas_name_a_call_once_and_stream_its_arguments() {
    let mut parser = ChatParser::new(auto(ToolFormat::Hermes));
    let pieces = ["<tool_call>{\"name\": \"add\", ", "\"arguments\": {\"a\"", ": 1", "}}</tool_call>"];
    let deltas: Vec<Vec<ChatDelta>> = pieces.iter().map(|piece| parser.push(piece)).collect();
    assert_eq!(deltas[0], []);
    let [ChatDelta::ToolCall { index: 0, id, name }, ChatDelta::Arguments { index: 0, part }] =
        &deltas[1][..]
    else {
        panic!("{:?}", deltas[1]);
    };
    assert_eq!((name.as_str(), part.as_str()), ("add", "{\"a\""));
    assert!(id.starts_with("chatcmpl-tool-"), "{id}");
    assert_eq!(deltas[2], [ChatDelta::Arguments { index: 0, part: ": 1".to_owned() }]);
    assert_eq!(deltas[3], [ChatDelta::Arguments { index: 0, part: "}".to_owned() }]);
    assert_eq!(parser.finish(), []);
}

#[test]
fn br_45_choices_do_not_mix() {
    let texts = [
        "<tool_call>{\"name\": \"now\"}</tool_call>",
        "<tool_call>{\"name\": \"add\", \"arguments\": {\"a\": 2}}",
    ];
    let mut parsers =
        [1, 2].map(|seed| ChatParser::new(ChatParserOptions { seed, ..auto(ToolFormat::Hermes) }));
    let mut outputs = [ChatOutput::default(), ChatOutput::default()];
    for at in 0..texts[1].len() {
        for ((parser, output), text) in parsers.iter_mut().zip(&mut outputs).zip(texts) {
            output.extend(parser.push(text.get(at..=at).unwrap_or_default()));
        }
    }
    let [first, second] = outputs.map(|output| output.tool_calls);
    assert_eq!((first[0].name.as_str(), first[0].arguments.as_str(), first.len()), ("now", "{}", 1));
    assert_eq!(
        (second[0].name.as_str(), second[0].arguments.as_str(), second.len()),
        ("add", "{\"a\": 2}", 1)
    );
    assert_ne!(first[0].id, second[0].id);
}

#[test]
fn content_waits_for_no_more_than_a_mark_or_white_space_before_one() {
    let mut parser = ChatParser::new(auto(ToolFormat::Hermes));
    let mut push = |piece: &str| {
        let mut output = ChatOutput::default();
        output.extend(parser.push(piece));
        output.content.unwrap_or_default()
    };
    assert_eq!(push("Hello "), "Hello");
    assert_eq!(push("you<to"), " you");
    assert_eq!(push("p>"), "<top>");
}

#[test]
fn calls_that_a_grammar_asked_for_are_read() {
    let required = ToolParsing::Required { format: ToolFormat::Mistral };
    let required = ChatParserOptions { tools: required, ..ChatParserOptions::default() };
    let text = "[{\"name\": \"now\", \"parameters\": {}}, {\"name\": \"add\", \"parameters\": {\"a\": 1}}]";
    let output = check_splits(&required, text);
    let calls: Vec<_> =
        output.tool_calls.iter().map(|call| (call.name.as_str(), call.arguments.as_str())).collect();
    assert_eq!((output.content, calls), (None, vec![("now", "{}"), ("add", "{\"a\": 1}")]));
    assert_eq!(output.tool_calls[0].id.len(), 9, "Mistral's templates take nothing else back");
    let named = ToolParsing::Named { format: ToolFormat::Hermes, name: "add".to_owned() };
    let named = ChatParserOptions { tools: named, ..ChatParserOptions::default() };
    let output = check_splits(&named, "{\"a\": 1}");
    let [ToolCall { name, arguments, .. }] = &output.tool_calls[..] else { panic!("{output:?}") };
    assert_eq!((name.as_str(), arguments.as_str(), output.content), ("add", "{\"a\": 1}", None));
}

/// Wherever `max_tokens` cuts it: what is no call yet is nothing, and calls that are complete stand.
#[test]
fn a_list_of_calls_that_is_cut_is_no_content() {
    let tools = ToolParsing::Required { format: ToolFormat::Hermes };
    let options = ChatParserOptions { tools, ..ChatParserOptions::default() };
    let text =
        "[{\"name\": \"now\", \"parameters\": {}} ,\n  {\"name\": \"add\", \"parameters\": {\"a\": 1}}]";
    let [first, second] = ["{}}", "}}]"].map(|end| text.find(end).unwrap());
    for cut in 0..=text.len() {
        let output = check_splits(&options, &text[..cut]);
        assert_eq!(output.content, None, "{}", &text[..cut]);
        let whole = output.tool_calls.iter().filter(|call| call.arguments.ends_with('}')).count();
        let expected = usize::from(cut >= first + 2) + usize::from(cut > second);
        assert_eq!(whole, expected, "{}", &text[..cut]);
    }
}

#[test]
fn without_tools_all_is_content() {
    for (text, ..) in HERMES.iter().chain(LLAMA3_JSON).chain(MISTRAL).chain(PYTHONIC) {
        let output = check_splits(&ChatParserOptions::default(), text);
        assert_eq!(output.content.as_deref().unwrap_or_default(), *text);
        assert_eq!((output.reasoning, output.tool_calls.len()), (None, 0));
    }
}

#[test]
fn reasoning_is_told_from_the_answer() {
    use ReasoningFormat::{DeepSeekR1, Qwen3};
    let cases = [
        (Qwen3, "<think>\nhm\n</think>\n\nYes.", Some("\nhm\n"), Some("\n\nYes.")),
        (Qwen3, "Yes. <think>no</think>", None, Some("Yes. <think>no</think>")),
        (Qwen3, "<think>hm", Some("hm"), None),
        (Qwen3, "<think>a < b </thin", Some("a < b </thin"), None),
        (Qwen3, "<thin", None, Some("<thin")),
        (Qwen3, "", None, None),
        (DeepSeekR1, "hm</think>Yes.", Some("hm"), Some("Yes.")),
        (DeepSeekR1, "<think>\nhm</think>", Some("\nhm"), None),
        (DeepSeekR1, "hm <think> hm", Some("hm <think> hm"), None),
        (DeepSeekR1, "<thi</think>x", Some("<thi"), Some("x")),
    ];
    for (format, text, reasoning, content) in cases {
        let output = check_splits(&thinking(format), text);
        assert_eq!((output.reasoning.as_deref(), output.content.as_deref()), (reasoning, content), "{text}");
    }
    for (prompt_end, format, text, reasoning, content) in [
        ("assistant\n<think>\n", Qwen3, "hm</think>x", Some("hm"), Some("x")),
        ("<think>\n\n</think>\n\n", Qwen3, "<think>x", None, Some("<think>x")),
        ("<think>\n\n</think>\n\n", DeepSeekR1, "x</think>", None, Some("x</think>")),
    ] {
        let reasoning_place = ReasoningPlace::after(prompt_end);
        let output = check_splits(&ChatParserOptions { reasoning_place, ..thinking(format) }, text);
        assert_eq!((output.reasoning.as_deref(), output.content.as_deref()), (reasoning, content), "{text}");
    }
}

#[test]
fn calls_follow_reasoning_and_are_none_within() {
    let call = "<tool_call>{\"name\": \"now\"}</tool_call>";
    let output = check_splits(&thinking(ReasoningFormat::Qwen3), &format!("<think>{call}</think>\n\n{call}"));
    assert_eq!((output.reasoning.as_deref(), output.content), (Some(call), None));
    assert_eq!(output.tool_calls.len(), 1);
}

#[test]
fn formats_have_names() {
    for (name, format) in ToolFormat::NAMES {
        assert_eq!((ToolFormat::named(name), format.to_string()), (Some(format), name.to_owned()));
    }
    for (name, format) in ReasoningFormat::NAMES {
        assert_eq!((ReasoningFormat::named(name), format.to_string()), (Some(format), name.to_owned()));
    }
    assert_eq!(ToolFormat::named("x"), None);
}

/// Pieces that texts of calls are made of, well put together or not.
const PIECES: &[&str] = &[
    "<tool_call>",
    "</tool_call>",
    "<tool_",
    "{\"name\": \"add\", ",
    "\"arguments\": ",
    "\"parameters\": ",
    "{\"a\": ",
    "}",
    "}}",
    "{\"name\": \"now\", \"arguments\": {}}",
    "[TOOL_CALLS]",
    "[",
    "]",
    "[ARGS]",
    "add",
    "now()",
    "add(a=",
    "'x'",
    ", ",
    ")",
    "1",
    "\"é🙂\"",
    " ",
    "\n",
    ";",
    "<think>",
    "</think>",
    "<|python_tag|>",
    "<|python_start|>",
    "text",
    "\\",
    "\"",
    "null",
    ":",
    "{",
];

proptest! {
    /// Whatever the text and its split, what is read is the same, and where nothing is a call no character is lost.
    #[test]
    fn br_45_streaming_equals_reading_the_whole(
        parts in proptest::collection::vec(proptest::sample::select(PIECES), 0..14),
        cuts in proptest::collection::vec(0_usize..200, 0..6),
        has_reasoning: bool,
    ) {
        let text = parts.concat();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| text.floor_char_boundary(cut)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
        for (_, format) in ToolFormat::NAMES {
            let reasoning = has_reasoning.then_some(ReasoningFormat::Qwen3);
            let options = ChatParserOptions { reasoning, ..auto(format) };
            let whole = ChatParser::parse(options.clone(), &text);
            prop_assert_eq!(&read(&options, pieces.iter().copied()), &whole);
            prop_assert_eq!(&read(&options, text.split_inclusive(|_| true)), &whole);
            if whole.tool_calls.is_empty() && !has_reasoning && !text.contains("<|python_end|>") {
                prop_assert_eq!(whole.content.unwrap_or_default(), text.as_str());
            }
        }
    }
}
