use clap::Args;
use quire_engine::{LogitsProcessorCall, ParamLimits, SamplingParams};
use serde::Serialize;
use serde_json::{Map, Value};

use super::form::FormFlags;
use super::values::count;

/// Sampling parameters as flags. What is not given is left to the model's `generation_config.json`, then to the
/// defaults of vLLM.
#[derive(Args, Clone, Debug, Default, Serialize)]
pub(crate) struct SamplingFlags {
    #[command(flatten)]
    #[serde(flatten)]
    end: EndFlags,
    #[command(flatten)]
    #[serde(flatten)]
    draw: DrawFlags,
    #[command(flatten)]
    #[serde(rename = "structured_outputs")]
    form: FormFlags,
}

/// When an output ends.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "Sampling")]
struct EndFlags {
    /// Tokens to generate at most.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    max_tokens: Option<u64>,
    /// Tokens before which nothing ends the output.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = count)]
    min_tokens: Option<u64>,
    /// A text that ends the output; may be given several times.
    #[arg(long, value_name = "TEXT")]
    stop: Option<Vec<String>>,
    /// Tokens that end the output, separated by commas.
    #[arg(long, value_name = "IDS", value_delimiter = ',', allow_negative_numbers = true, value_parser = token_id)]
    stop_token_ids: Option<Vec<u32>>,
    /// Goes on after the end-of-text token.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "true|false")]
    ignore_eos: Option<bool>,
    /// Leaves what ended the output in the text.
    #[arg(long, num_args = 0..=1, require_equals = true, default_missing_value = "true", hide_possible_values = true, value_name = "true|false")]
    include_stop_str_in_output: Option<bool>,
}

/// How tokens are chosen. A benchmark has these alone: its outputs are as long as it says.
#[derive(Args, Clone, Debug, Default, Serialize)]
#[command(next_help_heading = "Sampling")]
pub(crate) struct DrawFlags {
    /// 0 takes the best token always; up to 2.
    #[arg(long, value_name = "T", allow_negative_numbers = true, value_parser = finite)]
    temperature: Option<f64>,
    /// Keeps the smallest set of tokens with this mass.
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = finite)]
    top_p: Option<f64>,
    /// Keeps the best K tokens; 0 and -1 are off.
    #[arg(long, value_name = "K", allow_negative_numbers = true, value_parser = integer)]
    top_k: Option<i64>,
    /// Keeps tokens at least this probable relative to the best.
    #[arg(long, value_name = "P", allow_negative_numbers = true, value_parser = finite)]
    min_p: Option<f64>,
    /// The same seed gives the same text, whatever runs beside it; without one each run differs. Requests of a file that
    /// bring no seed of their own all get this one. It is also the seed of made-up weights (--load-format dummy).
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = integer)]
    seed: Option<i64>,
    /// How many of the best log-probabilities come with each token.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = integer)]
    logprobs: Option<i64>,
    /// The same for the tokens of the prompt.
    #[arg(long, value_name = "N", allow_negative_numbers = true, value_parser = integer)]
    prompt_logprobs: Option<i64>,
    /// Lowers tokens that were generated already.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = finite)]
    presence_penalty: Option<f64>,
    /// Lowers tokens once for each time they were generated.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = finite)]
    frequency_penalty: Option<f64>,
    /// Divides the logits of all tokens seen.
    #[arg(long, value_name = "X", allow_negative_numbers = true, value_parser = finite)]
    repetition_penalty: Option<f64>,
    /// Code that this program has registered and that edits the logits, with its arguments as JSON; may be given several
    /// times.
    #[arg(long = "logits-processor", value_name = "NAME[=JSON]", value_parser = processor)]
    logits_processors: Option<Vec<LogitsProcessorCall>>,
}

impl SamplingFlags {
    /// `defaults` with what was given in their place.
    pub(crate) fn over(&self, defaults: &SamplingParams) -> Result<SamplingParams, quire_engine::Error> {
        over(self, defaults)
    }

    /// As [`over`](Self::over), after checking all that can be checked without a model.
    pub(crate) fn checked_over(
        &self,
        defaults: &SamplingParams,
        limits: &ParamLimits,
    ) -> Result<SamplingParams, quire_engine::Error> {
        let params = self.over(defaults)?;
        params.check(limits)?;
        Ok(params)
    }

    /// The seed, for what else is random.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.draw.seed()
    }
}

impl DrawFlags {
    /// `defaults` with what was given in their place.
    pub(crate) fn over(&self, defaults: &SamplingParams) -> Result<SamplingParams, quire_engine::Error> {
        over(self, defaults)
    }

    /// The seed, for what else is random.
    pub(crate) fn seed(&self) -> Option<u64> {
        self.seed.and_then(|seed| u64::try_from(seed).ok())
    }
}

/// Flags have the names of their parameters; those not given are `null`.
fn over(flags: &impl Serialize, defaults: &SamplingParams) -> Result<SamplingParams, quire_engine::Error> {
    let given: Map<String, Value> = match serde_json::to_value(flags) {
        Ok(Value::Object(given)) => given,
        _ => unreachable!("a struct of plain fields becomes an object"),
    };
    Ok(defaults.with_json(&given)?)
}

/// A number that JSON has as well: NaN would become `null`, which is to say absent.
fn finite(text: &str) -> Result<f64, &'static str> {
    text.parse().ok().filter(|number: &f64| number.is_finite()).ok_or("expected a finite number")
}

fn integer(text: &str) -> Result<i64, &'static str> {
    text.parse().map_err(|_| "expected a whole number from -2^63, below 2^63")
}

fn processor(text: &str) -> Result<LogitsProcessorCall, String> {
    let (name, args) = text.split_once('=').unwrap_or((text, "null"));
    let args: Value =
        serde_json::from_str(args).map_err(|error| format!("expected JSON after the name: {error}"))?;
    Ok(LogitsProcessorCall::new(name, args))
}

fn token_id(text: &str) -> Result<u32, &'static str> {
    text.trim().parse().map_err(|_| "expected token ids, whole numbers from 0, below 2^32")
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, FromArgMatches, Parser};

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        sampling: SamplingFlags,
    }

    fn parse(line: &str) -> Result<SamplingFlags, clap::Error> {
        let words = std::iter::once("quire").chain(line.split_whitespace());
        Only::from_arg_matches(&Only::command().try_get_matches_from(words)?).map(|only| only.sampling)
    }

    #[test]
    fn flags_replace_defaults() {
        let flags = parse("--temperature 0 --top-k -1 --stop a --stop b --stop-token-ids 1,2 --ignore-eos");
        let defaults = SamplingParams { top_p: 0.5, ..SamplingParams::default() };
        let params = flags.expect("all are flags").over(&defaults).expect("all are parameters");
        let expected = SamplingParams {
            temperature: 0.0,
            top_k: -1,
            stop: vec!["a".to_owned(), "b".to_owned()],
            stop_token_ids: vec![1, 2],
            ignore_eos: true,
            ..defaults
        };
        assert_eq!(params, expected);
    }

    #[test]
    fn one_form_is_a_parameter_like_others() {
        let file = tempfile::NamedTempFile::new().expect("a file");
        std::fs::write(file.path(), "{\"type\": \"null\"}").expect("its contents");
        let path = file.path().display();
        for (line, given) in [
            (format!("--json-schema {path}"), serde_json::json!({"json": "{\"type\": \"null\"}"})),
            (format!("--grammar {path}"), serde_json::json!({"grammar": "{\"type\": \"null\"}"})),
            ("--regex a+".to_owned(), serde_json::json!({"regex": "a+"})),
            ("--choice a --choice b".to_owned(), serde_json::json!({"choice": ["a", "b"]})),
        ] {
            let params = parse(&line).expect("a flag").over(&SamplingParams::default()).expect("a parameter");
            assert_eq!(params.structured_outputs, serde_json::from_value(given).expect("a form"), "{line}");
        }
        let none = parse("").expect("no flags").over(&SamplingParams::default()).expect("defaults");
        assert_eq!(none.structured_outputs, None);
        assert!(parse("--regex a --choice b").is_err());
        let error = parse("--json-schema /no/such/file").expect_err("no file").to_string();
        assert!(error.contains("--json-schema") && error.contains("No such file"), "{error}");
    }

    #[test]
    fn a_logits_processor_has_arguments_after_an_equals_sign() {
        let flags = parse("--logits-processor a --logits-processor b={\"c\":1}").expect("flags");
        let params = flags.over(&SamplingParams::default()).expect("parameters");
        let with_args = LogitsProcessorCall::new("b", serde_json::json!({"c": 1}));
        assert_eq!(params.logits_processors, [LogitsProcessorCall::new("a", ()), with_args]);
        assert!(parse("--logits-processor b={").is_err());
    }

    #[test]
    fn a_switch_takes_a_value_after_an_equals_sign() {
        for (line, expected) in
            [("--ignore-eos", true), ("--ignore-eos=true", true), ("--ignore-eos=false", false)]
        {
            assert_eq!(parse(line).expect("a flag").end.ignore_eos, Some(expected), "{line}");
        }
    }

    #[test]
    fn a_number_out_of_range_is_told_the_range() {
        for (line, range) in [
            ("--max-tokens -1", "0 or more"),
            ("--stop-token-ids 1,-2", "from 0"),
            ("--seed 9999999999999999999", "below 2^63"),
        ] {
            let error = parse(line).expect_err("out of range").to_string();
            assert!(error.contains(range) && !error.contains("digit"), "{error}");
        }
    }

    #[test]
    fn a_value_of_another_type_names_its_flag() {
        for flag in ["--temperature", "--top-k", "--max-tokens", "--stop-token-ids", "--logprobs"] {
            let error = parse(&format!("{flag} x")).expect_err("x is no number").to_string();
            assert!(error.contains(flag), "{error}");
        }
    }
}
