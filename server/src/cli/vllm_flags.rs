//! Flags of `vllm serve` that launch scripts have and this server does not: each is answered, none is unknown.

use clap::{Arg, ArgMatches, Args, Command, Error, FromArgMatches};

use crate::error;

/// What was given of them.
#[derive(Clone, Debug, Default)]
pub(crate) struct VllmFlags {
    given: Vec<&'static str>,
}

/// Values by which a flag that is not built asks for nothing: what is served is the same.
const NEUTRAL: &[(&str, &str)] = &[
    ("calculate-kv-scales", "false"),
    ("cpu-offload-gb", "0"),
    ("data-parallel-size", "1"),
    ("api-server-count", "1"),
    ("num-lookahead-slots", "0"),
    ("pipeline-parallel-size", "1"),
    ("task", "auto"),
    ("task", "generate"),
    ("config-format", "auto"),
];

/// Without effect here, and why that is no loss.
const WITHOUT_EFFECT: &[(&str, &str)] = &[
    ("disable-log-requests", "prompts are never logged"),
    ("disable-log-stats", "the line of numbers comes every ten seconds; --log-level warn leaves it out"),
    ("max-log-len", "prompts are never logged"),
    ("chat-template-content-format", "which form of content a template reads is found by trying it"),
    ("uvicorn-log-level", "--log-level sets the level"),
    ("disable-uvicorn-access-log", "requests are logged at level debug only"),
    ("disable-frontend-multiprocessing", "there is one process"),
    ("distributed-executor-backend", "there is one process"),
    ("use-v2-block-manager", "there is one block manager"),
    ("disable-async-output-proc", "--no-async-scheduling is the plain loop"),
    ("disable-custom-all-reduce", "there is one device"),
    ("max-seq-len-to-capture", "graphs are captured by batch size, for any length"),
    ("num-scheduler-steps", "steps overlap: see --no-async-scheduling"),
    ("multi-step-stream-outputs", "steps overlap: see --no-async-scheduling"),
    ("scheduler-delay-factor", "see the policies of --scheduling-policy"),
    ("guided-decoding-backend", "there is one"),
    ("tokenizer-pool-size", "texts are tokenized by a pool of threads"),
    ("tokenizer-mode", "tokenizer.json is the one form"),
    ("model-impl", "there is one implementation of each model"),
    ("compilation-config", "there is no compiler"),
    ("enable-request-id-headers", "X-Request-Id is honoured always"),
];

/// Not built: starting without them would serve something else.
const NOT_BUILT: &[&str] = &[
    "allowed-local-media-path",
    "api-server-count",
    "calculate-kv-scales",
    "code-revision",
    "config-format",
    "cpu-offload-gb",
    "data-parallel-size",
    "disable-sliding-window",
    "enable-expert-parallel",
    "enable-lora",
    "enable-prompt-adapter",
    "enable-sleep-mode",
    "fully-sharded-loras",
    "headless",
    "hf-overrides",
    "kv-transfer-config",
    "limit-mm-per-prompt",
    "logits-processor-pattern",
    "lora-modules",
    "middleware",
    "mm-processor-kwargs",
    "num-lookahead-slots",
    "num-speculative-tokens",
    "collect-detailed-traces",
    "override-neuron-config",
    "override-pooler-config",
    "pipeline-parallel-size",
    "prompt-adapters",
    "qlora-adapter-name-or-path",
    "root-path",
    "rope-scaling",
    "rope-theta",
    "skip-tokenizer-init",
    "speculative-config",
    "speculative-model",
    "ssl-ca-certs",
    "ssl-cert-reqs",
    "task",
    "tokenizer-revision",
    "tool-parser-plugin",
    "trust-remote-code",
    "uds",
    "worker-cls",
];

impl VllmFlags {
    /// Warns of what has no effect.
    ///
    /// # Errors
    ///
    /// [`error::Error::FlagNotBuilt`] for one that would have changed what is served.
    pub(crate) fn check(&self) -> error::Result<()> {
        for flag in &self.given {
            match WITHOUT_EFFECT.iter().find(|(name, _)| name == flag) {
                Some((_, why)) => tracing::warn!(target: "quire::server", "--{flag} has no effect: {why}"),
                None => return Err(error::Error::FlagNotBuilt { flag }),
            }
        }
        Ok(())
    }
}

fn names() -> impl Iterator<Item = &'static str> {
    WITHOUT_EFFECT.iter().map(|(name, _)| *name).chain(NOT_BUILT.iter().copied())
}

impl Args for VllmFlags {
    fn augment_args(command: Command) -> Command {
        // Whatever stands behind them belongs to them.
        let arg = |name| Arg::new(name).long(name).hide(true).num_args(0..).allow_hyphen_values(false);
        names().map(arg).fold(command, Command::arg)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for VllmFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let is_given = |name: &&str| matches.value_source(name).is_some();
        let is_neutral = |name: &str| {
            let mut values = matches.get_many::<String>(name).into_iter().flatten();
            let value = values.next().map(String::as_str).unwrap_or_default();
            NEUTRAL.contains(&(name, value)) && values.next().is_none()
        };
        Ok(Self { given: names().filter(is_given).filter(|name| !is_neutral(name)).collect() })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Only {
        #[command(flatten)]
        flags: VllmFlags,
    }

    fn check(line: &str) -> Result<(), String> {
        let words = std::iter::once("quire").chain(line.split_whitespace());
        Only::try_parse_from(words).expect("all are known").flags.check().map_err(|error| error.to_string())
    }

    #[test]
    fn a_flag_that_would_change_what_is_served_is_refused() {
        assert_eq!(check("--disable-log-requests --uvicorn-log-level info"), Ok(()));
        let refused = check("--disable-log-requests --lora-modules a=b c=d").expect_err("not built");
        assert!(refused.contains("--lora-modules is not built"), "{refused}");
    }

    #[test]
    fn a_value_that_asks_for_nothing_is_none() {
        assert_eq!(check("--pipeline-parallel-size 1 --data-parallel-size=1 --task generate"), Ok(()));
        for line in
            ["--pipeline-parallel-size 2", "--pipeline-parallel-size", "--task embed", "--cpu-offload-gb 0 1"]
        {
            let refused = check(line).expect_err(line);
            assert!(refused.contains("is not built"), "{refused}");
        }
    }
}
