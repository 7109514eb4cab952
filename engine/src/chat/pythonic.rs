//! Calls written in Python.

use super::json_call::CallRules;
use super::json_value::{Scan, ValueScan};
use super::marker::Marker;
use super::python_literal;
use super::sink::Sink;

const OPEN: &str = "<|python_start|>";
const CLOSE: &str = "<|python_end|>";

/// Reads `[name(key=value, ...), ...]` that a text begins with, as some Llama models write calls; the marks
/// `<|python_start|>` and `<|python_end|>` may stand around it. A call begins with its first complete argument, or with
/// its end where it has none, and every argument is written as it is complete.
#[derive(Debug)]
pub(super) struct Pythonic {
    rules: CallRules,
    place: Place,
    /// What has come since the last piece that was certain to belong to a call.
    raw: String,
    name: String,
    key: String,
    num_arguments: usize,
    has_begun: bool,
}

#[derive(Debug)]
enum Place {
    Start(Marker),
    /// Before the opening bracket, after the mark.
    Open,
    /// Before a call.
    Item,
    Name,
    /// Before an argument or the closing parenthesis.
    KeyOrEnd,
    Key,
    Value(ValueScan, String),
    /// After an argument.
    CommaOrEnd,
    /// After a call.
    Between,
    Text(Marker),
}

impl Pythonic {
    pub(super) fn new(rules: CallRules) -> Self {
        Self {
            rules,
            place: Place::Start(Marker::new(OPEN)),
            raw: String::new(),
            name: String::new(),
            key: String::new(),
            num_arguments: 0,
            has_begun: false,
        }
    }

    pub(super) fn take(&mut self, c: char, sink: &mut Sink) {
        match &mut self.place {
            Place::Text(close) => {
                close.scan(c, |text| sink.content(text));
            }
            Place::Start(open) => {
                if open.scan(c, |text| self.raw.push_str(text)) {
                    self.raw.push_str(OPEN);
                    self.place = Place::Open;
                } else if self.raw.trim_start() == "[" {
                    self.place = Place::Item;
                } else if !self.raw.trim_start().is_empty() {
                    let rest = open.flush();
                    self.raw.push_str(rest);
                    self.give_up(sink);
                }
            }
            Place::Value(..) => self.take_value(c, sink),
            _ => {
                self.raw.push(c);
                self.take_layout(c, sink);
            }
        }
    }

    pub(super) fn finish(&mut self, sink: &mut Sink) {
        match &mut self.place {
            Place::Text(close) => sink.content(close.flush()),
            Place::Start(open) => {
                let rest = open.flush();
                self.raw.push_str(rest);
                self.give_up(sink);
            }
            // A call that has been cut: what of it is complete has been told.
            _ if self.has_begun => {}
            Place::Between if sink.num_calls() > 0 => {}
            _ => self.give_up(sink),
        }
    }

    /// Everything around names and values. The character is in `raw` already.
    fn take_layout(&mut self, c: char, sink: &mut Sink) {
        let is_in_word = matches!(self.place, Place::Name | Place::Key);
        match &mut self.place {
            Place::Name if is_of_name(c) => self.name.push(c),
            Place::Key if is_of_name(c) => self.key.push(c),
            _ if c.is_whitespace() && !is_in_word => {}
            Place::Open if c == '[' => self.place = Place::Item,
            Place::Item if is_of_name(c) => {
                self.name = c.to_string();
                self.place = Place::Name;
            }
            Place::Name if c == '(' && self.rules.knows(&self.name) => {
                (self.num_arguments, self.has_begun) = (0, false);
                self.place = Place::KeyOrEnd;
            }
            Place::KeyOrEnd if is_of_name(c) => {
                self.key = c.to_string();
                self.place = Place::Key;
            }
            Place::Key if c == '=' => self.place = Place::Value(ValueScan::default(), String::new()),
            Place::CommaOrEnd if c == ',' => self.place = Place::KeyOrEnd,
            Place::KeyOrEnd | Place::CommaOrEnd if c == ')' => self.end_call(sink),
            Place::Between if c == ',' => self.place = Place::Item,
            Place::Item | Place::Between if c == ']' && sink.num_calls() > 0 => {
                self.raw.clear();
                self.place = Place::Text(Marker::new(CLOSE));
            }
            _ => self.give_up(sink),
        }
    }

    fn take_value(&mut self, c: char, sink: &mut Sink) {
        let Place::Value(scan, held) = &mut self.place else { return };
        let scan = scan.take(c);
        if matches!(scan, Scan::Inside | Scan::Last) {
            held.push(c);
            self.raw.push(c);
        }
        match scan {
            Scan::Inside => {}
            Scan::Last => self.end_value(sink),
            Scan::After => {
                self.end_value(sink);
                self.take(c, sink);
            }
            Scan::Bad => {
                self.raw.push(c);
                self.give_up(sink);
            }
        }
    }

    fn end_value(&mut self, sink: &mut Sink) {
        let Place::Value(_, held) = std::mem::replace(&mut self.place, Place::CommaOrEnd) else { return };
        let Some(value) = python_literal::parse(&held) else { return self.give_up(sink) };
        self.begin(sink);
        let key = serde_json::Value::from(self.key.as_str());
        let front = if self.num_arguments == 0 { "{" } else { ", " };
        sink.arguments(&format!("{front}{key}: {value}"));
        self.num_arguments += 1;
    }

    fn begin(&mut self, sink: &mut Sink) {
        if !std::mem::replace(&mut self.has_begun, true) {
            sink.begin_call(self.name.clone());
        }
        self.raw.clear();
    }

    fn end_call(&mut self, sink: &mut Sink) {
        self.begin(sink);
        sink.arguments(if self.num_arguments == 0 { "{}" } else { "}" });
        self.has_begun = false;
        self.place = Place::Between;
    }

    /// What has come since the last that was certain is content, and so is all that follows.
    fn give_up(&mut self, sink: &mut Sink) {
        self.has_begun = false;
        self.place = Place::Text(Marker::new(CLOSE));
        sink.content(&std::mem::take(&mut self.raw));
    }
}

fn is_of_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_' || c == '.'
}
