//! `--config FILE.yaml`: flags in a file. What the command line says itself goes before it.

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Command;
use clap::error::ErrorKind;
use quire_engine::{EngineOptions, Source};
use serde_yaml_ng::{Mapping, Value};

use super::spelling;
use crate::env::nearest;
use crate::error::{Error, Result};

const FLAG: &str = "--config";

/// The words of a command line with those of its file in front of its own flags: what it says itself is not taken from there.
///
/// # Errors
///
/// [`Error::Read`], [`Error::ConfigFile`].
pub(crate) fn expand(words: Vec<OsString>, cli: &Command) -> Result<Vec<OsString>> {
    let command = words.get(1).and_then(|word| word.to_str()).and_then(|name| cli.find_subcommand(name));
    let (Some(command), Some(path)) = (command, given(&words)) else { return Ok(words) };
    // Where a command has no such flag, saying so is the parser's business.
    if !flags(command).any(|flag| flag == "config") {
        return Ok(words);
    }
    let of_all = cli.get_arguments().filter(|arg| arg.is_global_set()).cloned();
    let command = &command.clone().args(of_all);
    let has_model = words.get(2).and_then(|word| word.to_str()).is_some_and(|word| !word.starts_with('-'));
    let (head, rest) = words.split_at(2);
    let of_file = File { path: &path, command, has_model, rest }.words()?;
    Ok(head.iter().cloned().chain(of_file).chain(rest.iter().cloned()).collect())
}

/// The file that a command line names.
fn given(words: &[OsString]) -> Option<PathBuf> {
    let place = words
        .iter()
        .position(|word| word.to_str().is_some_and(|word| word.split('=').next() == Some(FLAG)))?;
    match words[place].to_str()?.split_once('=') {
        Some((_, path)) => Some(path.into()),
        None => words.get(place + 1).map(PathBuf::from),
    }
}

fn flags(command: &Command) -> impl Iterator<Item = &str> {
    command
        .get_arguments()
        .flat_map(|arg| arg.get_long().into_iter().chain(arg.get_all_aliases().into_iter().flatten()))
}

struct File<'a> {
    path: &'a Path,
    command: &'a Command,
    /// The command line names a model itself.
    has_model: bool,
    /// What it says beside.
    rest: &'a [OsString],
}

impl File<'_> {
    fn words(&self) -> Result<Vec<OsString>> {
        let text = fs::read_to_string(self.path)
            .map_err(|source| Error::Read { path: self.path.to_owned(), source })?;
        let mapping: Mapping = serde_yaml_ng::from_str(&text)
            .map_err(|error| self.refuse(format!("expected a mapping from flags to values: {error}")))?;
        let mut words = Vec::new();
        for (key, value) in &mapping {
            let key = key.as_str().ok_or_else(|| self.refuse("a key is no text".to_owned()))?;
            let flag = key.replace('_', "-");
            if !flags(self.command).any(|known| known == flag) {
                let nearest =
                    nearest(&flag, flags(self.command)).map(|nearest| format!(": did you mean {nearest}?"));
                return Err(self.refuse(format!("there is no flag {key}{}", nearest.unwrap_or_default())));
            }
            if flag == "config" {
                return Err(
                    self.refuse("config names another file: expected the flags themselves".to_owned())
                );
            }
            if flag == "model" && self.has_model || self.is_given(&flag) {
                self.check(&flag, value)?;
            } else {
                self.append(&flag, value, &mut words)?;
            }
        }
        Ok(words)
    }

    fn is_given(&self, flag: &str) -> bool {
        let words = self.rest.iter().filter_map(|word| word.to_str()?.strip_prefix("--"));
        words.map(|word| word.split('=').next()).any(|name| name == Some(flag))
    }

    /// A value that the command line goes before may not be wrong either.
    fn check(&self, flag: &str, value: &Value) -> Result<()> {
        let mut words = vec![OsString::from(self.command.get_name())];
        self.append(flag, value, &mut words)?;
        let settings = words[1..].iter().filter_map(|word| word.to_str()?.split_once('='));
        let name = spelling::flag(self.command, flag).map_or("", |arg| arg.get_id().as_str());
        let mut options = EngineOptions::default();
        for (_, value) in settings.filter(|_| EngineOptions::NAMES.contains(&name)) {
            options.set(name, value, Source::Flag).map_err(|error| self.refuse(error.to_string()))?;
        }
        match self.command.clone().try_get_matches_from(words) {
            // What goes with it may stand on the command line.
            Err(error) if error.kind() != ErrorKind::MissingRequiredArgument => {
                let text = error.to_string();
                let said = text.lines().next().unwrap_or_default();
                Err(self.refuse(said.trim_start_matches("error: ").to_owned()))
            }
            _ => Ok(()),
        }
    }

    fn append(&self, flag: &str, value: &Value, words: &mut Vec<OsString>) -> Result<()> {
        match value {
            Value::Null => {}
            Value::Bool(true) => words.push(format!("--{flag}").into()),
            // A switch that is off is one that is not given, or one that has an opposite.
            Value::Bool(false) => {
                let opposite = format!("no-{flag}");
                if flags(self.command).any(|known| known == opposite) {
                    words.push(format!("--{opposite}").into());
                }
            }
            Value::Number(number) => words.push(format!("--{flag}={number}").into()),
            Value::String(text) => words.push(format!("--{flag}={text}").into()),
            Value::Sequence(items) => items.iter().try_for_each(|item| self.append(flag, item, words))?,
            _ => {
                return Err(
                    self.refuse(format!("{flag} has a value that is no text, number, switch or list"))
                );
            }
        }
        Ok(())
    }

    fn refuse(&self, reason: String) -> Error {
        Error::ConfigFile { path: self.path.to_owned(), reason }
    }
}

#[cfg(test)]
mod tests {
    use clap::{Arg, ArgAction};

    use super::*;

    fn cli() -> Command {
        let switch = |name| Arg::new(name).long(name).action(ArgAction::SetTrue);
        let serve = Command::new("serve")
            .args(["config", "model", "api-key", "key"].map(|name| Arg::new(name).long(name)))
            .arg(Arg::new("port").long("port").value_parser(clap::value_parser!(u16)))
            .arg(Arg::new("block_size").long("block-size"))
            .arg(Arg::new("cert").long("cert").requires("key"))
            .args(["strict", "prefix", "no-prefix"].map(switch));
        let of_all = Arg::new("log_level").long("log-level").visible_alias("log").global(true);
        Command::new("quire").arg(of_all).subcommand(serve).subcommand(Command::new("chat"))
    }

    fn expanded(yaml: &str, line: &str) -> Result<Vec<String>, String> {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("config.yaml");
        fs::write(&path, yaml).expect("written");
        let words = format!("quire {line}").replace("FILE", &path.display().to_string());
        let words = words.split_whitespace().map(OsString::from).collect();
        let words = expand(words, &cli()).map_err(|error| error.to_string())?;
        Ok(words
            .into_iter()
            .skip(1)
            .map(|word| word.into_string().expect("text"))
            .filter(|word| !word.contains("config"))
            .collect())
    }

    #[test]
    fn the_file_says_what_the_line_does_not() {
        let yaml = "port: 80\nstrict: true\nprefix: false\napi_key: [a, b]\nmodel: other\n";
        let words = expanded(yaml, "serve mine --config FILE --port 90").expect("all are flags");
        let expected =
            ["serve", "--strict", "--no-prefix", "--api-key=a", "--api-key=b", "mine", "--port", "90"];
        assert_eq!(words, expected);
        let words = expanded("model: other\nlog_level: debug", "serve --config=FILE").expect("flags");
        assert_eq!(words, ["serve", "--model=other", "--log-level=debug"], "those of all commands too");
    }

    #[test]
    fn what_the_line_goes_before_may_not_be_wrong_either() {
        for (yaml, line, said) in [
            ("port: x", "serve --config FILE --port 90", "invalid value 'x' for '--port"),
            ("strict: maybe", "serve --config FILE --strict", "--strict"),
            ("block-size: 1x", "serve --config FILE --block-size 16", "block_size is \"1x\""),
            ("config: other.yaml", "serve --config FILE", "config names another file"),
        ] {
            let error = expanded(yaml, line).expect_err(yaml);
            assert!(error.contains(said), "{yaml}: {error}");
        }
        // What goes with it stands on the line.
        let words = expanded("cert: a", "serve --config FILE --cert b --key c").expect("it is right");
        assert_eq!(words, ["serve", "--cert", "b", "--key", "c"]);
    }

    #[test]
    fn an_unknown_key_is_told_the_nearest_flag() {
        let error = expanded("prot: 80", "serve --config FILE").expect_err("misspelt");
        assert!(error.contains("there is no flag prot: did you mean port?"), "{error}");
        assert!(expanded("- a", "serve --config FILE").expect_err("a list").contains("expected a mapping"));
        assert_eq!(expanded("prot: 80", "chat --config FILE").as_deref().map(<[_]>::len), Ok(1));
    }
}
