//! Calls as Llama 3 writes them.

use super::json_call::{CallRules, CallStep, JsonCall};
use super::marker::Marker;
use super::sink::Sink;

const TAG: &str = "<|python_tag|>";

/// Reads `{"name": ..., "parameters": {...}}`, one or several parted by semicolons, that a text begins with. A mark in front,
/// `<|python_tag|>`, may be there. Without it nothing but the name of a tool tells a call from an answer in JSON.
#[derive(Debug)]
pub(super) struct Llama3Json {
    rules: CallRules,
    place: Place,
    /// White space and semicolons before an object.
    raw: String,
}

#[derive(Debug)]
enum Place {
    Start(Marker),
    Call(Box<JsonCall>),
    /// After a call.
    Between,
    Text,
}

impl Llama3Json {
    pub(super) fn new(rules: CallRules) -> Self {
        Self { rules, place: Place::Start(Marker::new(TAG)), raw: String::new() }
    }

    pub(super) fn take(&mut self, c: char, sink: &mut Sink) {
        match &mut self.place {
            Place::Text => sink.content(c.encode_utf8(&mut [0; 4])),
            Place::Start(tag) => {
                let mut text = String::new();
                if tag.scan(c, |piece| text.push_str(piece)) {
                    self.raw.push_str(TAG);
                    self.place = Place::Between;
                } else if !text.is_empty() {
                    let rest = tag.flush();
                    text.push_str(rest);
                    self.take_start(&text, sink);
                }
            }
            Place::Between => match c {
                c if c.is_whitespace() || c == ';' => self.raw.push(c),
                '{' => self.open(sink),
                _ => self.give_up(Some(c), sink),
            },
            Place::Call(call) => match call.take(c, sink) {
                CallStep::More => {}
                CallStep::Done => {
                    self.raw.clear();
                    self.place = Place::Between;
                }
                CallStep::Broken => {
                    self.place = Place::Text;
                    self.take(c, sink);
                }
                CallStep::NotACall => self.give_up(Some(c), sink),
                CallStep::CompleteButNotACall => self.give_up(None, sink),
            },
        }
    }

    pub(super) fn finish(&mut self, sink: &mut Sink) {
        if let Place::Start(tag) = &mut self.place {
            let rest = tag.flush();
            self.raw.push_str(rest);
        }
        match &self.place {
            Place::Between if sink.num_calls() > 0 => {}
            Place::Call(call) if call.has_begun() => {}
            _ => self.give_up(None, sink),
        }
    }

    /// The beginning of a text that does not begin with the mark.
    fn take_start(&mut self, text: &str, sink: &mut Sink) {
        match text {
            "{" => self.open(sink),
            space if space.trim().is_empty() => self.raw.push_str(space),
            _ => {
                self.raw.push_str(text);
                self.give_up(None, sink);
            }
        }
    }

    fn open(&mut self, sink: &mut Sink) {
        let mut call = Box::new(JsonCall::new(self.rules.clone()));
        call.take('{', sink);
        self.place = Place::Call(call);
    }

    fn give_up(&mut self, c: Option<char>, sink: &mut Sink) {
        sink.content(&std::mem::take(&mut self.raw));
        if let Place::Call(call) = std::mem::replace(&mut self.place, Place::Text) {
            sink.content(&call.into_raw());
        }
        if let Some(c) = c {
            self.take(c, sink);
        }
    }
}
