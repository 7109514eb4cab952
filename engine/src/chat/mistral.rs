//! Calls as Mistral's models write them.

use super::json_call::CallRules;
use super::json_list::JsonList;
use super::json_value::{Scan, ValueScan};
use super::marker::Marker;
use super::sink::Sink;

const CALLS: &str = "[TOOL_CALLS]";

/// Reads `[TOOL_CALLS][{"name": ..., "arguments": {...}}, ...]`, and the newer form
/// `[TOOL_CALLS]name[ARGS]{...}[TOOL_CALLS]name{...}`, with or without `[ARGS]` and `[CALL_ID]`.
#[derive(Debug)]
pub(super) struct Mistral {
    place: Place,
}

#[derive(Debug)]
enum Place {
    Text(Marker),
    /// After the mark, with the white space since.
    Open(String),
    List(JsonList),
    Name(Name),
    Arguments(ValueScan),
}

/// A name that is being read, with the marks behind it.
#[derive(Debug, Default)]
struct Name {
    name: String,
    raw: String,
    /// The mark one is in.
    mark: Option<String>,
    /// What follows the name is none of it.
    is_complete: bool,
}

impl Mistral {
    pub(super) fn new() -> Self {
        Self { place: Self::text() }
    }

    fn text() -> Place {
        Place::Text(Marker::new(CALLS))
    }

    pub(super) fn take(&mut self, c: char, sink: &mut Sink) {
        match &mut self.place {
            Place::Text(mark) => {
                if mark.scan(c, |text| sink.content(text)) {
                    self.place = Place::Open(String::new());
                }
            }
            Place::Open(space) if c.is_whitespace() => space.push(c),
            Place::Open(space) if c == '[' => {
                let rules = CallRules { names: None, may_lack_arguments: true };
                let mut list = JsonList::new(rules, CALLS);
                std::mem::take(space).chars().chain([c]).for_each(|c| list.take(c, sink));
                self.place = Place::List(list);
            }
            Place::Open(space) => {
                let raw = std::mem::take(space);
                self.place = Place::Name(Name { raw, ..Name::default() });
                self.take_name(c, sink);
            }
            Place::List(list) => {
                list.take(c, sink);
                if list.has_ended() {
                    self.place = Self::text();
                }
            }
            Place::Name(_) => self.take_name(c, sink),
            Place::Arguments(scan) => match scan.take(c) {
                Scan::Inside => sink.arguments(c.encode_utf8(&mut [0; 4])),
                Scan::Last => {
                    sink.arguments(c.encode_utf8(&mut [0; 4]));
                    self.place = Self::text();
                }
                Scan::After | Scan::Bad => {
                    self.place = Self::text();
                    self.take(c, sink);
                }
            },
        }
    }

    pub(super) fn finish(&mut self, sink: &mut Sink) {
        match &mut self.place {
            Place::Text(mark) => sink.content(mark.flush()),
            Place::List(list) => list.finish(sink),
            Place::Arguments(_) => {}
            Place::Open(_) | Place::Name(_) => self.give_up(None, sink),
        }
    }

    fn take_name(&mut self, c: char, sink: &mut Sink) {
        let Place::Name(name) = &mut self.place else { return };
        match name.take(c) {
            NameStep::More => {}
            NameStep::Begins => {
                sink.begin_call(std::mem::take(&mut name.name));
                sink.arguments("{");
                let mut scan = ValueScan::default();
                scan.take(c);
                self.place = Place::Arguments(scan);
            }
            NameStep::NotAName => self.give_up(Some(c), sink),
        }
    }

    fn give_up(&mut self, c: Option<char>, sink: &mut Sink) {
        sink.content(CALLS);
        match std::mem::replace(&mut self.place, Self::text()) {
            Place::Open(space) => sink.content(&space),
            Place::Name(name) => sink.content(&name.raw),
            _ => {}
        }
        if let Some(c) = c {
            self.take(c, sink);
        }
    }
}

enum NameStep {
    More,
    /// Its arguments begin.
    Begins,
    NotAName,
}

impl Name {
    fn take(&mut self, c: char) -> NameStep {
        let step = self.step(c);
        if !matches!(step, NameStep::NotAName) {
            self.raw.push(c);
        }
        step
    }

    fn step(&mut self, c: char) -> NameStep {
        match &mut self.mark {
            Some(mark) if c == ']' && ["ARGS", "CALL_ID"].contains(&mark.as_str()) => self.mark = None,
            Some(mark) if c.is_ascii_uppercase() || c == '_' => mark.push(c),
            Some(_) => return NameStep::NotAName,
            None if self.name.is_empty() && !is_of_name(c) => return NameStep::NotAName,
            None if c == '{' => return NameStep::Begins,
            None if c == '[' => (self.mark, self.is_complete) = (Some(String::new()), true),
            None if c.is_whitespace() => self.is_complete = true,
            // The name of the call itself stands between `[CALL_ID]` and `[ARGS]`.
            None if self.is_complete && c.is_ascii_alphanumeric() => {}
            None if self.is_complete || !is_of_name(c) => return NameStep::NotAName,
            None => self.name.push(c),
        }
        NameStep::More
    }
}

fn is_of_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || "_-.:".contains(c)
}
