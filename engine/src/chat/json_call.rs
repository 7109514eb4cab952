//! A call written as a JSON object.

use std::sync::Arc;

use super::json_value::{Scan, ValueScan};
use super::sink::Sink;

/// The keys that arguments are found under.
const ARGUMENT_KEYS: [&str; 2] = ["arguments", "parameters"];

/// Reads `{"name": ..., "arguments": {...}}`, with its keys in any order, `parameters` in place of `arguments`, and other
/// keys that are passed over. The call begins when its name and the beginning of its arguments are there; what has begun is
/// a call, however it ends.
#[derive(Debug)]
pub(super) struct JsonCall {
    rules: CallRules,
    place: Place,
    key: String,
    name: Option<String>,
    /// Arguments that are not written through: before the name, or not an object.
    arguments: String,
    has_arguments: bool,
    has_begun: bool,
    /// All that has come, until the call begins.
    raw: String,
}

/// What makes an object a call.
#[derive(Clone, Debug, Default)]
pub(super) struct CallRules {
    /// The tools there are, where nothing but their names tells a call from text.
    pub(super) names: Option<Arc<[String]>>,
    /// Whether arguments may be left out.
    pub(super) may_lack_arguments: bool,
}

/// Where in the object one is.
#[derive(Debug)]
enum Place {
    Start,
    KeyOrEnd,
    Key,
    Colon,
    /// A value that is read as a whole: a name, or arguments that cannot be written through.
    Held(ValueScan, String),
    /// Arguments, written through as they come.
    Arguments(ValueScan),
    /// A value that says nothing about the call.
    Other(ValueScan),
    CommaOrEnd,
}

/// What a character led to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum CallStep {
    /// More is to come.
    More,
    /// The object is complete, and was a call.
    Done,
    /// A call has gone wrong at this character, which is no part of it.
    Broken,
    /// It is none: see [`JsonCall::into_raw`], which ends before this character.
    NotACall,
    /// It is none, as its last character shows: [`JsonCall::into_raw`] ends with it.
    CompleteButNotACall,
}

impl CallRules {
    pub(super) fn knows(&self, name: &str) -> bool {
        self.names.as_ref().is_none_or(|names| names.iter().any(|known| known == name))
    }
}

impl JsonCall {
    /// An object whose opening bracket comes next.
    pub(super) fn new(rules: CallRules) -> Self {
        Self {
            rules,
            place: Place::Start,
            key: String::new(),
            name: None,
            arguments: String::new(),
            has_arguments: false,
            has_begun: false,
            raw: String::new(),
        }
    }

    /// What has come, of an object that is no call; nothing of one that is.
    pub(super) fn into_raw(self) -> String {
        self.raw
    }

    /// Whether it has been told as a call.
    pub(super) fn has_begun(&self) -> bool {
        self.has_begun
    }

    pub(super) fn take(&mut self, c: char, sink: &mut Sink) -> CallStep {
        let step = self.step(c, sink);
        if !self.has_begun && !matches!(step, CallStep::NotACall | CallStep::Broken) {
            self.raw.push(c);
        }
        if self.has_begun {
            self.raw.clear();
        }
        step
    }

    fn step(&mut self, c: char, sink: &mut Sink) -> CallStep {
        match &mut self.place {
            Place::Key => self.take_key(c),
            Place::Held(..) | Place::Arguments(_) | Place::Other(_) => self.take_value(c, sink),
            _ if c.is_whitespace() => CallStep::More,
            Place::Start if c == '{' => self.go(Place::KeyOrEnd),
            Place::KeyOrEnd if c == '"' => {
                self.key.clear();
                self.go(Place::Key)
            }
            Place::KeyOrEnd | Place::CommaOrEnd if c == '}' => self.end(sink),
            Place::Colon if c == ':' => self.begin_value(),
            Place::CommaOrEnd if c == ',' => self.go(Place::KeyOrEnd),
            _ => self.fail(),
        }
    }

    fn go(&mut self, place: Place) -> CallStep {
        self.place = place;
        CallStep::More
    }

    fn fail(&self) -> CallStep {
        if self.has_begun { CallStep::Broken } else { CallStep::NotACall }
    }

    /// Keys with escapes are none that count.
    fn take_key(&mut self, c: char) -> CallStep {
        let num_escapes = self.key.bytes().rev().take_while(|&byte| byte == b'\\').count();
        if c == '"' && num_escapes % 2 == 0 {
            return self.go(Place::Colon);
        }
        self.key.push(c);
        CallStep::More
    }

    fn begin_value(&mut self) -> CallStep {
        let is_name = self.key == "name" && self.name.is_none();
        let is_arguments = ARGUMENT_KEYS.contains(&self.key.as_str()) && !self.has_arguments;
        let scan = ValueScan::default();
        self.go(if is_name || is_arguments { Place::Held(scan, String::new()) } else { Place::Other(scan) })
    }

    fn take_value(&mut self, c: char, sink: &mut Sink) -> CallStep {
        let scan = match &mut self.place {
            Place::Held(scan, _) | Place::Arguments(scan) | Place::Other(scan) => scan.take(c),
            _ => return CallStep::More,
        };
        match scan {
            // JSON has one kind of quote and two of brackets; a string may hold any.
            Scan::Bad => self.fail(),
            Scan::Inside | Scan::Last => {
                if !self.keep(c, sink) {
                    return CallStep::NotACall;
                }
                if scan == Scan::Last { self.end_value(sink) } else { CallStep::More }
            }
            Scan::After => match self.end_value(sink) {
                CallStep::More => self.step(c, sink),
                other => other,
            },
        }
    }

    /// Takes a character of a value. Arguments that are an object are written through once the name is known. False if the
    /// name is that of no tool.
    fn keep(&mut self, c: char, sink: &mut Sink) -> bool {
        match &mut self.place {
            Place::Held(scan, held) => {
                held.push(c);
                if c == '{' && held.trim_start() == "{" && self.key != "name" {
                    self.has_arguments = true;
                    self.arguments.push(c);
                    self.place = Place::Arguments(std::mem::take(scan));
                    return self.write_through(sink);
                }
            }
            Place::Arguments(_) => {
                self.arguments.push(c);
                return self.write_through(sink);
            }
            _ => {}
        }
        true
    }

    /// Begins the call if it can, and writes what there is of arguments. False if the name is that of no tool.
    fn write_through(&mut self, sink: &mut Sink) -> bool {
        if !self.has_begun {
            let Some(name) = &self.name else { return true };
            if !self.rules.knows(name) {
                return false;
            }
            sink.begin_call(name.clone());
            self.has_begun = true;
        }
        sink.arguments(&self.arguments);
        self.arguments.clear();
        true
    }

    fn end_value(&mut self, sink: &mut Sink) -> CallStep {
        let place = std::mem::replace(&mut self.place, Place::CommaOrEnd);
        let Place::Held(_, held) = place else { return CallStep::More };
        let value = serde_json::from_str(held.trim());
        if self.key == "name" {
            let Ok(serde_json::Value::String(name)) = value else { return self.fail() };
            self.name = Some(name);
            return if self.has_arguments && !self.write_through(sink) {
                CallStep::NotACall
            } else {
                CallStep::More
            };
        }
        self.has_arguments = true;
        self.arguments = match value {
            Ok(serde_json::Value::String(text)) => text,
            Ok(serde_json::Value::Null) => "{}".to_owned(),
            Ok(_) => held.trim().to_owned(),
            Err(_) => return self.fail(),
        };
        if self.write_through(sink) { CallStep::More } else { CallStep::NotACall }
    }

    /// The object is complete.
    fn end(&mut self, sink: &mut Sink) -> CallStep {
        if self.has_begun {
            return CallStep::Done;
        }
        if self.name.is_none() || !(self.has_arguments || self.rules.may_lack_arguments) {
            return CallStep::CompleteButNotACall;
        }
        "{}".clone_into(&mut self.arguments);
        if self.write_through(sink) { CallStep::Done } else { CallStep::CompleteButNotACall }
    }
}
