//! Where a model's reasoning ends and its answer begins.

use std::fmt;

use super::marker::Marker;
use super::sink::Sink;

const OPEN: &str = "<think>";
const CLOSE: &str = "</think>";

/// How a family of models sets its reasoning apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ReasoningFormat {
    /// `<think>...</think>` at the beginning, or no reasoning.
    Qwen3,
    /// All up to `</think>`; the opening mark is in the prompt as a rule, and left out where it is not.
    DeepSeekR1,
}

impl ReasoningFormat {
    /// The names it has on a command line.
    pub const NAMES: [(&str, Self); 2] = [("qwen3", Self::Qwen3), ("deepseek_r1", Self::DeepSeekR1)];

    /// The format of that name, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// Whether a rendered prompt has opened the reasoning already, so that the output begins within.
    pub fn is_opened_by(prompt: &str) -> bool {
        prompt.trim_end().ends_with(OPEN)
    }
}

impl fmt::Display for ReasoningFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = Self::NAMES.iter().find(|(_, format)| format == self).map_or("", |(name, _)| name);
        f.write_str(name)
    }
}

/// Tells reasoning from what follows it. White space on either side stays as it is.
#[derive(Debug)]
pub(super) struct Reasoning {
    place: Place,
    /// Whether what does not begin with the mark is reasoning all the same.
    is_implied: bool,
}

#[derive(Debug)]
enum Place {
    /// White space, or the opening mark, or a beginning of it.
    Start(Marker, String),
    Inside(Marker),
    After,
}

impl Reasoning {
    pub(super) fn new(format: ReasoningFormat, is_open: bool) -> Self {
        let is_implied = format == ReasoningFormat::DeepSeekR1 || is_open;
        Self { place: Place::Start(Marker::new(OPEN), String::new()), is_implied }
    }

    /// Takes a character. What is no reasoning goes to `answer`.
    pub(super) fn take(&mut self, c: char, sink: &mut Sink, answer: &mut impl FnMut(char, &mut Sink)) {
        match &mut self.place {
            Place::After => answer(c, sink),
            Place::Inside(close) => {
                if close.scan(c, |text| sink.reasoning(text)) {
                    self.place = Place::After;
                }
            }
            Place::Start(open, held) => {
                if open.scan(c, |text| held.push_str(text)) {
                    self.place = Place::Inside(Marker::new(CLOSE));
                } else if !held.trim_start().is_empty() {
                    held.push_str(open.flush());
                    self.decide(sink, answer);
                }
            }
        }
    }

    pub(super) fn finish(&mut self, sink: &mut Sink, answer: &mut impl FnMut(char, &mut Sink)) {
        if let Place::Start(open, held) = &mut self.place {
            held.push_str(open.flush());
            self.decide(sink, answer);
        }
        if let Place::Inside(close) = &mut self.place {
            sink.reasoning(close.flush());
        }
    }

    /// The text does not begin with the mark.
    fn decide(&mut self, sink: &mut Sink, answer: &mut impl FnMut(char, &mut Sink)) {
        let place = if self.is_implied { Place::Inside(Marker::new(CLOSE)) } else { Place::After };
        if let Place::Start(_, held) = std::mem::replace(&mut self.place, place) {
            held.chars().for_each(|c| self.take(c, sink, answer));
        }
    }
}
