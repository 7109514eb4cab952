//! Flags as launch scripts of vLLM spell them: underscores for dashes, its short names, numbers below zero.

use std::ffi::OsString;

use clap::{Arg, Command};

/// vLLM's short names, each for a long one of `quire serve`.
const SHORT: &[(&str, &str)] = &[
    ("-tp", "tensor-parallel-size"),
    ("-pp", "pipeline-parallel-size"),
    ("-dp", "data-parallel-size"),
    ("-ep", "enable-expert-parallel"),
    ("-q", "quantization"),
    ("-cc", "compilation-config"),
    ("-sc", "speculative-config"),
];

/// The level of its compiler, often with the number right behind.
const LEVEL: &str = "-O";

/// The words of a command line, with flags as the parser knows them. What stands behind `--` stays.
pub(crate) fn normalized(words: Vec<OsString>, cli: &Command) -> Vec<OsString> {
    let (mut command, mut normal) = (cli, Vec::with_capacity(words.len()));
    let mut words = words.into_iter().peekable();
    normal.extend(words.next());
    while let Some(word) = words.next() {
        let Some(text) = word.to_str() else {
            normal.push(word);
            continue;
        };
        if text == "--" {
            normal.push(word);
            break;
        }
        if !text.starts_with('-') {
            command = command.find_subcommand(text).unwrap_or(command);
            normal.push(word);
            continue;
        }
        let text = if command.get_name() == "serve" { long(text) } else { text.to_owned() };
        let (text, takes_value) = dashed(text, [command, cli]);
        // The parser would take it for a flag, and not for a value that may be wrong.
        match words.next_if(|next| takes_value && next.to_str().is_some_and(is_below_zero)) {
            Some(value) => normal.push(format!("{text}={}", value.to_string_lossy()).into()),
            None => normal.push(text.into()),
        }
    }
    normal.extend(words);
    normal
}

/// The long form of a short name, with what stands behind it.
fn long(text: &str) -> String {
    let (name, value) = text.split_once('=').map_or((text, None), |(name, value)| (name, Some(value)));
    if let Some((_, long)) = SHORT.iter().find(|(short, _)| *short == name) {
        return value.map_or_else(|| format!("--{long}"), |value| format!("--{long}={value}"));
    }
    match text.strip_prefix(LEVEL) {
        Some("") => "--compilation-config".to_owned(),
        Some(level) => format!("--compilation-config={}", level.trim_start_matches('=')),
        None => text.to_owned(),
    }
}

/// A long flag with dashes, where that is one of those commands, and whether the next word is its value.
fn dashed(text: String, commands: [&Command; 2]) -> (String, bool) {
    let Some(given) = text.strip_prefix("--") else { return (text, false) };
    let (name, value) = given.split_once('=').map_or((given, None), |(name, value)| (name, Some(value)));
    let name = name.replace('_', "-");
    match commands.into_iter().find_map(|command| flag(command, &name)) {
        None => (text, false),
        Some(_) if value.is_some() => (format!("--{name}={}", value.unwrap_or_default()), false),
        Some(flag) => (format!("--{name}"), flag.get_action().takes_values()),
    }
}

/// The flag of that long name.
pub(super) fn flag<'a>(command: &'a Command, name: &str) -> Option<&'a Arg> {
    let is_it = |arg: &&Arg| {
        arg.get_long() == Some(name) || arg.get_all_aliases().is_some_and(|aliases| aliases.contains(&name))
    };
    command.get_arguments().find(is_it)
}

fn is_below_zero(text: &str) -> bool {
    let number = text.strip_prefix('-').unwrap_or_default();
    number.starts_with(|c: char| c.is_ascii_digit() || c == '.') && number.parse::<f64>().is_ok()
}

#[cfg(test)]
mod tests {
    use clap::ArgAction;

    use super::*;

    fn normal(line: &str) -> String {
        let valued = ["max-model-len", "seed", "tensor-parallel-size"].map(|name| Arg::new(name).long(name));
        let switch = Arg::new("strict").long("strict").action(ArgAction::SetTrue);
        let alias = Arg::new("max-num-waiting").long("max-num-waiting").alias("max-queued-requests");
        let serve = Command::new("serve").args(valued).arg(switch).arg(alias);
        let cli = Command::new("quire")
            .arg(Arg::new("log-level").long("log-level").global(true))
            .subcommand(serve)
            .subcommand(Command::new("chat").arg(Arg::new("quiet").short('q').action(ArgAction::SetTrue)));
        let words = normalized(line.split_whitespace().map(OsString::from).collect(), &cli);
        words.join(" ".as_ref()).into_string().expect("text")
    }

    #[test]
    fn flags_may_be_spelt_as_in_vllm() {
        for (line, expected) in [
            ("quire serve m --max_model_len 9", "quire serve m --max-model-len 9"),
            ("quire serve m --max_model-len=a_b", "quire serve m --max-model-len=a_b"),
            ("quire serve --max_queued_requests 9", "quire serve --max-queued-requests 9"),
            ("quire serve --log_level warn", "quire serve --log-level warn"),
            (
                "quire serve m -tp 2 -pp=3",
                "quire serve m --tensor-parallel-size 2 --pipeline-parallel-size=3",
            ),
            (
                "quire serve -O3 -O=2 -O",
                "quire serve --compilation-config=3 --compilation-config=2 --compilation-config",
            ),
            ("quire serve --seed -1 --strict -1", "quire serve --seed=-1 --strict -1"),
            ("quire serve --seed -.5 --seed -x", "quire serve --seed=-.5 --seed -x"),
        ] {
            assert_eq!(normal(line), expected);
        }
        for same in [
            "quire serve m_x --made_up 1",
            "quire serve -- --max_model_len -tp",
            "quire chat -q",
            "quire -tp",
            "quire",
        ] {
            assert_eq!(normal(same), same);
        }
    }
}
