//! Where log lines go: standard error, filtered by level or by target.

use std::io::{self, IsTerminal};
use std::sync::OnceLock;

use parking_lot::Mutex;
use tracing_subscriber::filter::ParseError;
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::util::SubscriberInitExt;
use tracing_subscriber::{EnvFilter, Registry, reload};

use crate::env::Env;
use crate::log_writer::LogWriter;

/// A filter that cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "{name} is `{given}`: expected off, error, warn, info, debug, trace or a list of TARGET=LEVEL ({source})"
)]
pub struct LogFilterError {
    name: &'static str,
    given: String,
    source: ParseError,
}

/// Starts logging for the process. `flag` wins over `QUIRE_LOG`, `RUST_LOG`, `VLLM_LOGGING_LEVEL` and `default`, in
/// this order. A program that has set up logging of its own keeps it.
///
/// # Errors
///
/// [`LogFilterError`] where the filter that wins cannot be read.
pub(crate) fn start(flag: Option<&str>, default: &str, env: &Env) -> Result<(), LogFilterError> {
    let (name, given) = choose(flag, default, env);
    if name != "RUST_LOG" && is_bare_target(given) {
        // Not through the log, which the filter has just closed to this.
        eprintln!(
            "warning: {name} is `{given}`, which is no level: only log lines of a target {given} are written"
        );
    }
    let directives = directives(given);
    let filter = EnvFilter::builder().parse(&directives);
    let filter = filter.map_err(|source| LogFilterError { name, given: given.to_owned(), source })?;
    let writer = LogWriter::default();
    let has_colour = io::stderr().is_terminal() && env.get("NO_COLOR").is_none();
    let lines = tracing_subscriber::fmt::layer().with_writer(move || writer.clone()).with_ansi(has_colour);
    let (filter, handle) = reload::Layer::new(filter);
    // Fails only where the program that embeds the command line logs already.
    if tracing_subscriber::registry().with(filter).with(lines).try_init().is_ok() {
        let _ = RUNNING.set(Running { handle, directives: Mutex::new(directives) });
    }
    Ok(())
}

/// The filter of this process, which is one as its log is one.
static RUNNING: OnceLock<Running> = OnceLock::new();

struct Running {
    handle: reload::Handle<EnvFilter, Registry>,
    directives: Mutex<String>,
}

/// Sets the level of one target while the process runs.
///
/// # Errors
///
/// [`LogLevelError`].
pub(crate) fn set_target_level(target: &str, level: &str) -> Result<(), LogLevelError> {
    let levels = ["off", "error", "warn", "info", "debug", "trace"];
    if !levels.contains(&level) {
        return Err(LogLevelError::Level { given: level.to_owned() });
    }
    let running = RUNNING.get().ok_or(LogLevelError::Foreign)?;
    let mut directives = running.directives.lock();
    let others = directives.split(',').filter(|one| one.split('=').next() != Some(target));
    let changed =
        others.map(str::to_owned).chain([format!("{target}={level}")]).collect::<Vec<_>>().join(",");
    let filter = EnvFilter::builder().parse(&changed).map_err(|_| LogLevelError::Foreign)?;
    running.handle.reload(filter).map_err(|_| LogLevelError::Foreign)?;
    *directives = changed;
    Ok(())
}

/// A level that cannot be set.
#[derive(Debug, thiserror::Error)]
pub(crate) enum LogLevelError {
    #[error("level is {given:?}: expected off, error, warn, info, debug or trace")]
    Level { given: String },
    #[error("the log of this process is not Quire's own, its level cannot be changed")]
    Foreign,
}

fn choose<'a>(flag: Option<&'a str>, default: &'a str, env: &'a Env) -> (&'static str, &'a str) {
    let names = ["QUIRE_LOG", "RUST_LOG", "VLLM_LOGGING_LEVEL"];
    let from_env = || names.into_iter().find_map(|name| Some((name, env.get(name)?)));
    flag.map(|flag| ("--log-level", flag)).or_else(from_env).unwrap_or(("the default", default))
}

/// A bare level is meant for Quire; what it is built from keeps to warnings.
fn directives(given: &str) -> String {
    match given.to_ascii_lowercase().as_str() {
        level @ ("info" | "debug" | "trace") => format!("warn,quire={level}"),
        "warning" => "warn".to_owned(),
        "critical" => "error".to_owned(),
        _ => given.split(',').map(long_target).collect::<Vec<_>>().join(","),
    }
}

/// Quire's own targets have short names in a list: `schedule=debug` is `quire::schedule=debug`.
fn long_target(directive: &str) -> String {
    let short = ["schedule", "scheduler", "engine", "executor", "kernels", "models", "server"];
    match directive.split_once('=') {
        Some(("dispatch", level)) => format!("quire::kernels={level}"),
        Some((target, level)) if short.contains(&target) => format!("quire::{target}={level}"),
        _ => directive.to_owned(),
    }
}

/// Whether a filter is a single word that is neither a level nor Quire itself: meant as a level, most likely. Other
/// programs read `RUST_LOG` as well, so a word there may be theirs.
fn is_bare_target(given: &str) -> bool {
    let levels = ["off", "error", "warn", "warning", "info", "debug", "trace", "critical", "quire"];
    given.chars().all(|c| c.is_ascii_alphabetic() || c == '_')
        && !levels.contains(&given.to_ascii_lowercase().as_str())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_nearer_name_wins() {
        let env = Env::of(&[("VLLM_LOGGING_LEVEL", "DEBUG"), ("RUST_LOG", "off")]);
        assert_eq!(choose(Some("trace"), "info", &env), ("--log-level", "trace"));
        assert_eq!(choose(None, "info", &env), ("RUST_LOG", "off"));
        assert_eq!(choose(None, "info", &Env::default()), ("the default", "info"));
    }

    #[test]
    fn levels_of_other_loggers_are_understood() {
        for (given, expected) in [
            ("DEBUG", "warn,quire=debug"),
            ("WARNING", "warn"),
            ("quire::engine=trace,off", "quire::engine=trace,off"),
            ("schedule=debug", "quire::schedule=debug"),
            (
                "warn,schedule=debug,dispatch=info,tokio=off",
                "warn,quire::schedule=debug,quire::kernels=info,tokio=off",
            ),
        ] {
            assert_eq!(directives(given), expected);
            assert!(EnvFilter::builder().parse(directives(given)).is_ok());
        }
    }

    #[test]
    fn a_word_that_is_no_level_is_told_from_a_filter() {
        for (given, expected) in [
            ("foo", true),
            ("verbose", true),
            ("INFO", false),
            ("quire=debug", false),
            ("quire", false),
            ("a::b", false),
        ] {
            assert_eq!(is_bare_target(given), expected, "{given}");
        }
    }

    #[test]
    fn a_filter_that_cannot_be_read_is_named() {
        let error =
            start(Some("quire=loud"), "info", &Env::default()).expect_err("no such level").to_string();
        assert!(error.starts_with("--log-level is `quire=loud`"), "{error}");
    }
}
