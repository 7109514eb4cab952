use clap::builder::{BoolishValueParser, NonEmptyStringValueParser};
use clap::{Arg, ArgAction, ArgMatches, Args, Command, Error, FromArgMatches};
use quire_engine::{ConfigError, EngineOptions, Source};

/// Settings of the engine as flags: each by the name that [`EngineOptions`] has for it, with dashes.
#[derive(Clone, Debug, Default)]
pub(crate) struct EngineFlags {
    given: Vec<(&'static str, String)>,
    /// Beside the first, which is a setting.
    other_names: Vec<String>,
}

/// A setting and what to say about it.
struct Flag {
    name: &'static str,
    value_name: &'static str,
    help: &'static str,
}

const fn flag(name: &'static str, value_name: &'static str, help: &'static str) -> Flag {
    Flag { name, value_name, help }
}

const FLAGS: &[Flag] = &[
    flag("served_model_name", "NAME", "The name that the model is called by; a server takes several"),
    flag("revision", "REVISION", "Branch, tag or commit of a model of the hub, as @REVISION behind its name"),
    flag("tokenizer", "PATH", "Where the tokenizer is, if not beside the model"),
    flag("chat_template", "FILE", "A chat template in place of the model's: a file, or the template itself"),
    flag("generation_config", "auto|none", "Where sampling defaults come from"),
    flag(
        "override_generation_config",
        "JSON",
        "Sampling defaults that go before those, such as '{\"temperature\": 0.5}'",
    ),
    flag("load_format", "auto|dummy", "Where weights come from; dummy makes random ones"),
    flag("dtype", "DTYPE", "What weights are computed in: auto, float32, float16 or bfloat16"),
    flag(
        "quantization",
        "NAME",
        "The quantization that is expected; fp8 quantizes a dense model while it is read",
    ),
    flag("device", "auto|cpu|cuda|cuda:N", "The backend, and which of its devices"),
    flag("tensor_parallel_size", "N", "Devices that a layer is split over"),
    flag("max_model_len", "N|auto", "Tokens of prompt and output together, such as 4096, 4k or auto"),
    flag("block_size", "N", "Tokens a block of the KV cache holds: 8, 16, 32 or 64"),
    flag("kv_cache_dtype", "DTYPE", "What keys and values are stored in"),
    flag("kv_cache_memory", "BYTES", "Memory of the KV pool, such as 2GiB"),
    flag("num_gpu_blocks_override", "N", "Blocks of the KV pool, whatever the memory says"),
    flag("gpu_memory_utilization", "SHARE", "The share of the device's memory that may be used"),
    flag("graph_memory", "BYTES", "Device memory for captured steps, such as 512MiB"),
    flag("kernel_tuning", "FILE", "Kernels that `quire tune-kernels` found on this device"),
    flag("swap_space", "GIB", "Host memory for swapped sequences, in GiB; none by default"),
    flag(
        "preemption_mode",
        "auto|recompute|swap",
        "What happens to a sequence that must give way: auto takes what is quicker",
    ),
    flag(
        "max_pinned_bytes",
        "BYTES",
        "KV cache that pinned beginnings may keep, such as 64MiB; none by default",
    ),
    flag("max_num_seqs", "N", "Sequences that run at once"),
    flag("max_num_batched_tokens", "N", "Tokens that a step computes"),
    flag("max_prefill_chunk", "N", "Tokens of one prompt that a step computes"),
    flag(
        "long_prefill_token_threshold",
        "N",
        "Tokens that a step computes of a prompt that is longer; 0 sets no limit",
    ),
    flag("max_num_partial_prefills", "N", "Prompts that may be computed in part at the same time"),
    flag(
        "capacity_mode",
        "MODE",
        "When a request may start: max-utilization, with room for what it has now, or guaranteed, for all it may ever have",
    ),
    flag(
        "scheduling_policy",
        "NAME",
        "The scheduling policy: fcfs, priority, fair, shortest-first, prefix-aware or length-bucket",
    ),
    flag("max_num_waiting", "N", "Requests that may wait before others are refused"),
    flag("recording_dir", "DIR", "Where the scheduler's recordings go, at SIGUSR1 or an internal error"),
    flag(
        "max_logprobs",
        "N",
        "Log-probabilities that a request may ask for at each token; -1 is the whole vocabulary",
    ),
    flag(
        "logprobs_mode",
        "MODE",
        "What log-probabilities are of: raw_logprobs, raw_logits, processed_logprobs or processed_logits",
    ),
];

/// Settings that are on or off: `--NAME`, `--NAME=false` and `--no-NAME`.
const SWITCHES: &[(&str, &str)] = &[
    (
        "enable_prefix_caching",
        "Blocks of ended sequences serve others that begin alike (on by default, off by --no-enable-prefix-caching)",
    ),
    (
        "enable_chunked_prefill",
        "A prompt may be computed over several steps (on by default, off by --no-enable-chunked-prefill)",
    ),
    (
        "async_scheduling",
        "A step is planned while the one before it runs (on by default, off by --no-async-scheduling)",
    ),
    ("enforce_eager", "Steps are never captured as graphs"),
    ("deterministic", "A result does not depend on the batch, the chunking or the cache, bit for bit"),
    ("allow_long_max_model_len", "max_model_len may be more than the model was made for"),
];

const HEADING: &str = "Engine";

/// The setting that may be given several times.
const SERVED_NAME: &str = "served_model_name";

impl EngineFlags {
    /// The text given for a setting.
    pub(crate) fn get(&self, name: &str) -> Option<&str> {
        self.given.iter().find(|(given, _)| *given == name).map(|(_, value)| value.as_str())
    }

    /// All that was given, by the settings' names.
    pub(crate) fn values(&self) -> impl Iterator<Item = (&str, &str)> {
        self.given.iter().map(|(name, value)| (*name, value.as_str()))
    }

    /// Names of the model beside the first.
    pub(crate) fn other_names(&self) -> &[String] {
        &self.other_names
    }

    /// Writes what was given into `options`.
    pub(crate) fn set(&self, options: &mut EngineOptions) -> Result<(), ConfigError> {
        self.given.iter().try_for_each(|(name, value)| options.set(name, value, Source::Flag))
    }
}

impl Args for EngineFlags {
    fn augment_args(command: Command) -> Command {
        let values = FLAGS.iter().map(|flag| {
            let arg = Arg::new(flag.name).long(dashed(flag.name)).value_name(flag.value_name).help(flag.help);
            match flag.name {
                // The server's word for it.
                "max_num_waiting" => arg.alias("max-queued-requests"),
                SERVED_NAME => arg.action(ArgAction::Append).value_parser(NonEmptyStringValueParser::new()),
                _ => arg,
            }
        });
        let switches = SWITCHES.iter().flat_map(|(name, help)| {
            let (on, off) = (dashed(name), format!("no-{}", dashed(name)));
            let on = Arg::new(*name).long(on).help(*help).value_name("true|false").num_args(0..=1);
            let on = on.require_equals(true).default_missing_value("true").hide_possible_values(true);
            let on = on.value_parser(BoolishValueParser::new()).overrides_with(*name);
            let negated = Arg::new(off.clone()).long(off.clone()).hide(true).action(ArgAction::SetTrue);
            [on.overrides_with(off), negated.overrides_with(*name)]
        });
        values
            .map(|arg| arg.allow_hyphen_values(true))
            .chain(switches)
            .fold(command, |command, arg| command.arg(arg.help_heading(HEADING)))
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for EngineFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let values =
            FLAGS.iter().filter_map(|flag| Some((flag.name, matches.get_one::<String>(flag.name)?.clone())));
        let switches = SWITCHES.iter().filter_map(|(name, _)| {
            let is_off = matches.get_flag(&format!("no-{}", dashed(name))).then_some(false);
            let is_on = matches.get_one::<bool>(name).copied().or(is_off)?;
            Some((*name, is_on.to_string()))
        });
        let names = matches.get_many::<String>(SERVED_NAME).into_iter().flatten();
        let other_names = names.skip(1).cloned().collect();
        Ok(Self { given: values.chain(switches).collect(), other_names })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

fn dashed(name: &str) -> String {
    name.replace('_', "-")
}

#[cfg(test)]
mod tests {
    use clap::{CommandFactory, Parser};

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        engine: EngineFlags,
    }

    fn parse(line: &str) -> EngineFlags {
        let words = std::iter::once("quire").chain(line.split_whitespace());
        Only::try_parse_from(words).expect("all are flags").engine
    }

    #[test]
    fn every_flag_is_a_setting_and_every_setting_a_flag() {
        Only::command().debug_assert();
        let names = FLAGS.iter().map(|flag| flag.name).chain(SWITCHES.iter().map(|(name, _)| *name));
        let mut names: Vec<_> = names.collect();
        // The model is the argument, and the seed is a flag of the sampling parameters.
        names.extend(["model", "seed"]);
        names.sort_unstable();
        let mut settings = EngineOptions::NAMES.to_vec();
        settings.sort_unstable();
        assert_eq!(names, settings);
    }

    #[test]
    fn the_last_of_a_switch_and_its_opposite_counts() {
        for (line, expected) in [
            ("--enable-prefix-caching", Some("true")),
            ("--no-enable-prefix-caching", Some("false")),
            ("--enable-prefix-caching --no-enable-prefix-caching", Some("false")),
            ("--no-enable-prefix-caching --enable-prefix-caching", Some("true")),
            ("--enable-prefix-caching=false", Some("false")),
            ("--enable-prefix-caching=false --enable-prefix-caching", Some("true")),
            ("--no-enable-prefix-caching --enable-prefix-caching=on", Some("true")),
            ("", None),
        ] {
            let given = parse(line).given.into_iter().find(|(name, _)| *name == "enable_prefix_caching");
            assert_eq!(given.map(|(_, value)| value).as_deref(), expected, "{line}");
        }
    }

    #[test]
    fn values_reach_the_options_as_text() {
        let mut options = EngineOptions::default();
        parse("--max-model-len 1k --device cpu").set(&mut options).expect("both are settings");
        assert_eq!(options.device_name(), "cpu");
        let error = parse("--block-size -3").set(&mut options).expect_err("not a count").to_string();
        assert!(error.contains("block_size") && error.contains("-3"), "{error}");
    }
}
