//! The fields of each body. A test holds them equal to what the handlers take.

use quire_engine::SamplingParams;
use serde_json::Value;

use super::field::{Field, Kind};
use crate::http::common;

const TOKEN_ID: Kind = Kind::Integer(0, u32::MAX as i64);
const TOKEN_IDS: Kind = Kind::List(&TOKEN_ID);
const ANY: f64 = f64::INFINITY;
const MOST: i64 = i64::MAX;

const SOME_TOKEN_IDS: Kind = Kind::SomeOf(&TOKEN_ID);
const PROMPTS: Kind =
    Kind::OneOf(&[Kind::Text, Kind::SomeOf(&Kind::Text), SOME_TOKEN_IDS, Kind::SomeOf(&SOME_TOKEN_IDS)]);

const PART: Kind = Kind::Fields(&[("type", Kind::Text, true), ("text", Kind::Text, false)]);
const CONTENT: Kind = Kind::OneOf(&[Kind::Text, Kind::List(&PART), Kind::Nothing]);
const MESSAGE: Kind = Kind::Fields(&[("role", Kind::Text, true), ("content", CONTENT, false)]);

const STREAM_OPTIONS: Kind =
    Kind::Fields(&[("include_usage", Kind::Bool, false), ("continuous_usage_stats", Kind::Bool, false)]);

const FORMATS: Kind = Kind::Choice(&["text", "json_object", "json_schema", "structural_tag"]);
const RESPONSE_FORMAT: Kind = Kind::Fields(&[("type", FORMATS, true), ("json_schema", Kind::Object, false)]);

const LEVELS: Kind = Kind::Choice(&["off", "error", "warn", "info", "debug", "trace"]);

/// Fields of [`SamplingParams`]; their defaults are those in force.
const SAMPLING: &[(&str, Kind, &str)] = &[
    ("n", Kind::Integer(1, 16384), "Outputs; 1 where the temperature is 0."),
    ("best_of", Kind::Integer(1, 16384), "Only n itself is allowed."),
    ("temperature", Kind::Number(0.0, 2.0), "0 takes the best token always."),
    ("top_p", Kind::NumberAbove(0.0, 1.0), "Keeps the smallest set of tokens with this mass; 1 is off."),
    ("top_k", Kind::Integer(-1, MOST), "Keeps the best so many tokens; 0 and -1 are off."),
    ("min_p", Kind::Number(0.0, 1.0), "Keeps tokens at least this probable relative to the best; 0 is off."),
    ("seed", Kind::Integer(i64::MIN, MOST), "Makes the choices repeatable; -1 draws one."),
    (
        "presence_penalty",
        Kind::Number(-2.0, 2.0),
        "Subtracted from the logits of tokens that were generated.",
    ),
    ("frequency_penalty", Kind::Number(-2.0, 2.0), "Subtracted for each time that a token was generated."),
    ("repetition_penalty", Kind::NumberAbove(0.0, ANY), "Divides the logits of all tokens seen; 1 is off."),
    ("logit_bias", Kind::Biases, "Added to the logits of tokens, by token id; clamped to 100 either way."),
    ("max_tokens", Kind::Integer(1, MOST), "Tokens to generate at most; none is as many as fit."),
    (
        "min_tokens",
        Kind::Integer(0, MOST),
        "Tokens before which nothing ends the output; at most max_tokens.",
    ),
    (
        "stop",
        Kind::OneOf(&[Kind::SomeText, Kind::List(&Kind::SomeText)]),
        "Texts that end the output, none of them empty.",
    ),
    ("stop_token_ids", TOKEN_IDS, "Tokens that end the output."),
    ("ignore_eos", Kind::Bool, "Whether end tokens are tokens like others."),
    ("include_stop_str_in_output", Kind::Bool, "Whether what ended the output stays in the text."),
    ("logprobs", LOGPROBS, "How many of the best log-probabilities come with each token; -1 is all."),
    ("prompt_logprobs", LOGPROBS, "The same for the tokens of the prompt; not in a stream."),
    (
        "skip_reading_prefix_cache",
        Kind::Bool,
        "Whether all of the prompt is computed, whatever the prefix cache has.",
    ),
    ("skip_special_tokens", Kind::Bool, "Whether special tokens are left out of the text."),
    ("detokenize", Kind::Bool, "Whether tokens are turned into text at all."),
    ("spaces_between_special_tokens", Kind::Bool, "Whether spaces set off added tokens that follow another."),
    (
        "bad_words",
        Kind::List(&Kind::SomeText),
        "Words that must not be generated, with a space before them or without.",
    ),
    ("allowed_token_ids", SOME_TOKEN_IDS, "The only tokens that may be generated, at least one."),
    (
        "truncate_prompt_tokens",
        TRUNCATION,
        "Keeps the last so many tokens of the prompt; -1 what fits beside max_tokens.",
    ),
    ("output_kind", OUTPUT_KINDS, "Nothing here: stream says how an answer comes."),
    (
        "structured_outputs",
        Kind::Object,
        "The form that the output must have: json, regex, choice, grammar, ...",
    ),
    (
        "logits_processors",
        Kind::List(&PROCESSOR),
        "Processors of logits, by the names that the program has for them.",
    ),
];

const LOGPROBS: Kind = Kind::OneOf(&[Kind::Integer(-1, MOST), Kind::Bool]);
const PROCESSOR: Kind =
    Kind::OneOf(&[Kind::Text, Kind::Fields(&[("name", Kind::Text, true), ("args", Kind::Any, false)])]);
const OUTPUT_KINDS: Kind = Kind::Choice(&["cumulative", "delta", "final_only"]);
const TRUNCATION: Kind = Kind::OneOf(&[Kind::Integer(-1, -1), Kind::Integer(1, MOST)]);

/// `POST /v1/completions`.
pub(super) fn completion(defaults: &SamplingParams) -> Vec<Field> {
    let own = vec![
        model(),
        Field::new("prompt", PROMPTS, "Each prompt has n outputs; tokens are taken as they are.").required(),
        Field::new("echo", Kind::Bool, "Whether the text begins with the prompt.").default(false),
        Field::new("suffix", Kind::EmptyText, "Not built: expected none, or an empty text."),
        special_tokens(true),
        tokens_as_ids(),
    ];
    [own, stream(), sampling(defaults), forms(), common()].concat()
}

/// `POST /v1/chat/completions`.
pub(super) fn chat(defaults: &SamplingParams) -> Vec<Field> {
    let own = vec![
        Field::new("max_completion_tokens", Kind::Integer(1, MOST), "The newer name of max_tokens; it wins."),
        Field::new(
            "top_logprobs",
            Kind::Integer(0, MOST),
            "Log-probabilities beside each token's; with logprobs.",
        ),
        Field::new("echo", Kind::Bool, "Whether a continued message begins the answer.").default(false),
        Field::new("include_reasoning", Kind::Bool, "Whether reasoning that is set apart is told.")
            .default(true),
        tokens_as_ids(),
    ];
    let sampling = sampling(defaults).into_iter().map(|field| match field.name {
        "logprobs" => Field::new("logprobs", Kind::Bool, "Whether tokens come with their log-probabilities.")
            .default(false),
        "max_tokens" => Field { default: Value::Null, ..field },
        _ => field,
    });
    [vec![model()], conversation(), own, stream(), sampling.collect(), forms(), common()].concat()
}

/// `POST /tokenize`: a text, or a conversation.
pub(super) fn tokenize(_: &SamplingParams) -> Vec<Field> {
    let conversation = conversation().into_iter().map(|field| Field { is_required: false, ..field });
    let own = vec![
        model(),
        Field::new("prompt", Kind::Text, "A text; it excludes messages."),
        Field::new(
            "truncate_prompt_tokens",
            TRUNCATION,
            "Keeps the last so many tokens; -1 what fits beside max_tokens.",
        ),
        Field::new(
            "return_token_strs",
            Kind::Bool,
            "Whether the tokens come as the vocabulary writes them, too.",
        )
        .default(false),
    ];
    let conversation = conversation.map(|field| match field.name {
        // It is true for a text.
        "add_special_tokens" => Field { default: Value::Null, ..field },
        _ => field,
    });
    [own, conversation.collect()].concat()
}

/// `POST /detokenize`.
pub(super) fn detokenize(_: &SamplingParams) -> Vec<Field> {
    vec![model(), Field::new("tokens", TOKEN_IDS, "Token ids, below the size of the vocabulary.").required()]
}

/// `POST /debug/schedule-log`.
pub(super) fn schedule_log(_: &SamplingParams) -> Vec<Field> {
    vec![
        Field::new("request_id", Kind::Text, "Whose decisions are logged; left out, those on all requests."),
        Field::new("level", LEVELS, "The level of the lines.").default("debug"),
    ]
}

fn model() -> Field {
    Field::new("model", Kind::Text, "A name that the model is served under; left out, the first of them.")
}

fn conversation() -> Vec<Field> {
    vec![
        Field::new("messages", Kind::SomeOf(&MESSAGE), "The conversation, the oldest message first.")
            .required(),
        Field::new("add_generation_prompt", Kind::Bool, "Whether the answer's turn is begun.").default(true),
        Field::new(
            "continue_final_message",
            Kind::Bool,
            "Whether the last message goes on; it excludes the former.",
        )
        .default(false),
        special_tokens(false),
        Field::new("chat_template", Kind::Text, "A template in place of the model's, in Jinja."),
        Field::new("chat_template_kwargs", Kind::Object, "What the template sees beside the messages."),
        Field::new("documents", Kind::List(&Kind::Object), "Documents, for templates that know them."),
        Field::new(
            "tools",
            Kind::List(&Kind::Object),
            "Functions that the model may call, each {type, function: {name, description, parameters}}.",
        ),
        Field::new(
            "tool_choice",
            Kind::OneOf(&[Kind::Text, Kind::Object]),
            "none, auto, required, or {type, function: {name}}.",
        ),
        Field::new("parallel_tool_calls", Kind::Bool, "Whether one answer may have several calls.")
            .default(true),
    ]
}

fn special_tokens(default: bool) -> Field {
    let text = "Whether the tokenizer puts the model's first token in front of a text; templates write it themselves.";
    Field::new("add_special_tokens", Kind::Bool, text).default(default)
}

fn tokens_as_ids() -> Field {
    let text = "Whether log-probabilities name tokens as token_id:ID; left out, as the server is set.";
    Field::new("return_tokens_as_token_ids", Kind::Bool, text)
}

fn stream() -> Vec<Field> {
    vec![
        Field::new("stream", Kind::Bool, "Whether the answer comes as server-sent events.").default(false),
        Field::new("stream_options", STREAM_OPTIONS, "Which events have a usage; with stream only."),
    ]
}

fn sampling(defaults: &SamplingParams) -> Vec<Field> {
    let defaults = serde_json::to_value(defaults).unwrap_or_default();
    let field = |&(name, kind, text)| Field::new(name, kind, text).default(defaults[name].clone());
    SAMPLING.iter().map(field).collect()
}

/// The form of an output, as OpenAI and older clients name it.
fn forms() -> Vec<Field> {
    let json = Kind::OneOf(&[Kind::Object, Kind::Text]);
    vec![
        Field::new("response_format", RESPONSE_FORMAT, "The form that the output must have."),
        Field::new("guided_json", json, "The older name of structured_outputs.json."),
        Field::new("guided_regex", Kind::Text, "The older name of structured_outputs.regex."),
        Field::new(
            "guided_choice",
            Kind::SomeOf(&Kind::Text),
            "The older name of structured_outputs.choice.",
        ),
        Field::new("guided_grammar", Kind::Text, "The older name of structured_outputs.grammar."),
        Field::new("guided_whitespace_pattern", Kind::Text, "What may stand between the parts of JSON."),
    ]
}

fn common() -> Vec<Field> {
    let mut fields = vec![
        Field::new("request_id", Kind::Text, "Names the request in its id and in logs."),
        Field::new(
            "priority",
            Kind::Integer(i32::MIN as i64, i32::MAX as i64),
            "For the policy of that name: less comes first.",
        )
        .default(0),
        Field::new(
            "cache_salt",
            Kind::SomeText,
            "Keeps the prompt's cached blocks from those who do not know it.",
        ),
        Field::new("use_beam_search", Kind::Bool, "Searches n outputs in place of drawing them.")
            .default(false),
        Field::new(
            "length_penalty",
            Kind::Number(-ANY, ANY),
            "A search ranks by the log-probability over the length to this power.",
        )
        .default(1.0),
    ];
    fields.extend(common::NO_EFFECT.map(|name| Field::new(name, Kind::Text, "Has no effect here.")));
    let not_built = |name| Field::new(name, Kind::Off, "Not built: expected none, or false.");
    fields.extend(common::NOT_BUILT.map(not_built));
    fields
}

#[cfg(test)]
mod tests {
    use quire_engine::ParamLimits;
    use serde_json::{Map, json};

    use super::*;

    #[test]
    fn sampling_parameters_are_those_of_the_engine() {
        let names: Vec<_> = SAMPLING.iter().map(|(name, ..)| *name).collect();
        assert_eq!(names, SamplingParams::field_names());
    }

    #[test]
    fn ranges_are_those_that_are_checked() {
        let limits = ParamLimits { vocab_size: 100, max_logprobs: 20, ..ParamLimits::default() };
        let is_allowed = |name: &str, value: &Value| {
            let given = Map::from_iter([(name.to_owned(), value.clone())]);
            let params = SamplingParams { max_tokens: None, ..SamplingParams::default() };
            params.with_json(&given).is_ok_and(|params| params.check(&limits).is_ok())
        };
        let mut num_bounds = 0;
        for (name, kind, _) in SAMPLING.iter().filter(|(name, ..)| *name != "best_of") {
            let bounds: &[(Value, bool)] = &match *kind {
                Kind::Integer(i64::MIN, MOST) => continue,
                Kind::Integer(min, MOST) => vec![(json!(min), true), (json!(min - 1), false)],
                Kind::Integer(min, max) => [(min, true), (min - 1, false), (max, true), (max + 1, false)]
                    .map(|(value, ok)| (json!(value), ok))
                    .to_vec(),
                Kind::Number(min, max) => [(min, true), (min - 0.1, false), (max, true), (max + 0.1, false)]
                    .map(|(value, ok)| (json!(value), ok))
                    .to_vec(),
                Kind::NumberAbove(min, max) if max.is_finite() => {
                    vec![(json!(min), false), (json!(max), true), (json!(max + 0.1), false)]
                }
                Kind::NumberAbove(min, _) => vec![(json!(min), false), (json!(1e3), true)],
                _ => continue,
            };
            for (value, expected) in bounds {
                assert_eq!(is_allowed(name, value), *expected, "{name} = {value}");
                num_bounds += 1;
            }
        }
        assert!(num_bounds > 25, "{num_bounds} bounds");
    }
}
