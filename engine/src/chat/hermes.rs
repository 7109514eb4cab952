//! Calls as Hermes and Qwen 2.5 write them.

use super::json_call::{CallRules, CallStep, JsonCall};
use super::marker::Marker;
use super::sink::Sink;

const OPEN: &str = "<tool_call>";
const CLOSE: &str = "</tool_call>";

/// Reads `<tool_call>{"name": ..., "arguments": {...}}</tool_call>`, wherever it stands in a text.
#[derive(Debug)]
pub(super) struct Hermes {
    place: Place,
    rules: CallRules,
}

#[derive(Debug)]
enum Place {
    Text(Marker),
    /// After the opening mark, with the white space since.
    Open(String),
    Call {
        call: Box<JsonCall>,
        space: String,
    },
    /// After the object.
    Close(Marker),
}

impl Hermes {
    pub(super) fn new() -> Self {
        let rules = CallRules { names: None, may_lack_arguments: true };
        Self { place: Place::Text(Marker::new(OPEN)), rules }
    }

    pub(super) fn take(&mut self, c: char, sink: &mut Sink) {
        match &mut self.place {
            Place::Text(open) => {
                if open.scan(c, |text| sink.content(text)) {
                    self.place = Place::Open(String::new());
                }
            }
            Place::Open(space) if c.is_whitespace() => space.push(c),
            Place::Open(space) if c == '{' => {
                let mut call = Box::new(JsonCall::new(self.rules.clone()));
                call.take(c, sink);
                self.place = Place::Call { call, space: std::mem::take(space) };
            }
            Place::Open(_) => self.give_up(Some(c), sink),
            Place::Call { call, .. } => match call.take(c, sink) {
                CallStep::More => {}
                CallStep::Done => self.place = Place::Close(Marker::new(CLOSE)),
                CallStep::Broken => self.again(c, sink),
                CallStep::NotACall => self.give_up(Some(c), sink),
                CallStep::CompleteButNotACall => self.give_up(None, sink),
            },
            Place::Close(close) => {
                let close = close.clone();
                self.take_close(close, c, sink);
            }
        }
    }

    pub(super) fn finish(&mut self, sink: &mut Sink) {
        match &mut self.place {
            Place::Text(open) => sink.content(open.flush()),
            Place::Close(_) => {}
            Place::Call { call, .. } if call.has_begun() => {}
            Place::Open(_) | Place::Call { .. } => self.give_up(None, sink),
        }
    }

    /// White space, then the closing mark. Where it is missing, the text goes on.
    fn take_close(&mut self, mut close: Marker, c: char, sink: &mut Sink) {
        let mut text = String::new();
        if close.scan(c, |piece| text.push_str(piece)) {
            self.place = Place::Text(Marker::new(OPEN));
        } else if text.trim().is_empty() {
            self.place = Place::Close(close);
        } else {
            self.place = Place::Text(Marker::new(OPEN));
            text.push_str(close.flush());
            text.chars().for_each(|c| self.take(c, sink));
        }
    }

    /// What looked like a call is content.
    fn give_up(&mut self, c: Option<char>, sink: &mut Sink) {
        sink.content(OPEN);
        match std::mem::replace(&mut self.place, Place::Text(Marker::new(OPEN))) {
            Place::Open(space) => sink.content(&space),
            Place::Call { call, space } => {
                sink.content(&space);
                sink.content(&call.into_raw());
            }
            Place::Text(_) | Place::Close(_) => {}
        }
        if let Some(c) = c {
            self.take(c, sink);
        }
    }

    fn again(&mut self, c: char, sink: &mut Sink) {
        self.place = Place::Text(Marker::new(OPEN));
        self.take(c, sink);
    }
}
