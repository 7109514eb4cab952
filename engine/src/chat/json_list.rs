//! Calls in a JSON list.

use super::json_call::{CallRules, CallStep, JsonCall};
use super::sink::Sink;

/// Reads `[{"name": ..., "arguments": {...}}, ...]`. What is no list of calls, and what follows one, is content.
#[derive(Debug)]
pub(super) struct JsonList {
    rules: CallRules,
    place: Place,
    /// What has come since the last call.
    raw: String,
    /// What stood before the list, if that is a mark: it is content where no list of calls follows.
    mark: &'static str,
    /// Whether a text is a list and nothing else: then no part of one that is cut is content.
    is_all: bool,
}

#[derive(Debug)]
enum Place {
    Start,
    Item,
    Call(Box<JsonCall>),
    Between,
    /// No list, or its end.
    Text,
}

impl JsonList {
    pub(super) fn new(rules: CallRules, mark: &'static str) -> Self {
        Self { rules, place: Place::Start, raw: String::new(), mark, is_all: false }
    }

    /// A text that is a list of calls and nothing else, as a grammar has it, and may be cut anywhere.
    pub(super) fn alone(rules: CallRules) -> Self {
        Self { is_all: true, ..Self::new(rules, "") }
    }

    /// Whether all that follows is content.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.place, Place::Text)
    }

    pub(super) fn take(&mut self, c: char, sink: &mut Sink) {
        match &mut self.place {
            Place::Text => sink.content(c.encode_utf8(&mut [0; 4])),
            Place::Call(call) => {
                let step = call.take(c, sink);
                self.follow(step, c, sink);
            }
            Place::Start | Place::Item | Place::Between if c.is_whitespace() => self.raw.push(c),
            Place::Start if c == '[' => self.go(Place::Item, c),
            Place::Item if c == '{' => {
                let mut call = JsonCall::new(self.rules.clone());
                call.take(c, sink);
                self.place = Place::Call(Box::new(call));
            }
            Place::Between if c == ',' => self.go(Place::Item, c),
            Place::Item | Place::Between if c == ']' => self.end(c, sink),
            _ => self.give_up(Some(c), sink),
        }
    }

    pub(super) fn finish(&mut self, sink: &mut Sink) {
        match &self.place {
            _ if self.is_all => {}
            Place::Text | Place::Between => {}
            Place::Call(call) if call.has_begun() => {}
            _ => self.give_up(None, sink),
        }
    }

    fn go(&mut self, place: Place, c: char) {
        self.place = place;
        self.raw.push(c);
    }

    fn follow(&mut self, step: CallStep, c: char, sink: &mut Sink) {
        match step {
            CallStep::More => {}
            CallStep::Done => {
                (self.mark, self.place) = ("", Place::Between);
                self.raw.clear();
            }
            CallStep::Broken => {
                (self.mark, self.place) = ("", Place::Text);
                self.raw.clear();
                self.take(c, sink);
            }
            CallStep::NotACall => self.give_up(Some(c), sink),
            CallStep::CompleteButNotACall => self.give_up(None, sink),
        }
    }

    /// The list closes. An empty one is content.
    fn end(&mut self, c: char, sink: &mut Sink) {
        if self.mark.is_empty() && matches!(self.place, Place::Between) {
            self.raw.clear();
            self.place = Place::Text;
        } else {
            self.give_up(Some(c), sink);
        }
    }

    /// What has come since the last call is content.
    fn give_up(&mut self, c: Option<char>, sink: &mut Sink) {
        sink.content(std::mem::take(&mut self.mark));
        sink.content(&std::mem::take(&mut self.raw));
        if let Place::Call(call) = std::mem::replace(&mut self.place, Place::Text) {
            sink.content(&call.into_raw());
        }
        if let Some(c) = c {
            sink.content(c.encode_utf8(&mut [0; 4]));
        }
    }
}
