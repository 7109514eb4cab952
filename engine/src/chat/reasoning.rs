//! Where a model's reasoning ends and its answer begins.

use std::fmt;

use serde::{Deserialize, Serialize};

use super::marker::Marker;
use super::sink::Sink;

/// How a family of models sets its reasoning apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum ReasoningFormat {
    /// `<think>...</think>` at the beginning, or no reasoning.
    #[serde(rename = "qwen3")]
    Qwen3,
    /// All up to `</think>`; the opening mark is in the prompt as a rule, and left out where it is not.
    #[serde(rename = "deepseek_r1")]
    DeepSeekR1,
}

/// What the end of a prompt says of the reasoning that follows.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ReasoningPlace {
    /// Nothing.
    #[default]
    Unsaid,
    /// It has begun: the output goes on with it.
    Open,
    /// It has ended, or there is to be none: the output begins with the answer.
    Closed,
}

impl ReasoningPlace {
    /// As many tokens as the end of a prompt that says something may have.
    pub const MAX_TOKENS: usize = 16;

    /// Behind a prompt with that end, which is as long as a mark at least and written with its special tokens.
    pub fn after(prompt_end: &str) -> Self {
        match prompt_end.trim_end() {
            end if end.ends_with(ReasoningFormat::OPEN) => Self::Open,
            end if end.ends_with(ReasoningFormat::CLOSE) => Self::Closed,
            _ => Self::Unsaid,
        }
    }
}

impl ReasoningFormat {
    /// The names it has on a command line.
    pub const NAMES: [(&str, Self); 2] = [("qwen3", Self::Qwen3), ("deepseek_r1", Self::DeepSeekR1)];

    /// The format of that name, if there is one.
    pub fn named(name: &str) -> Option<Self> {
        Self::NAMES.iter().find(|(known, _)| *known == name).map(|(_, format)| *format)
    }

    /// What reasoning begins with.
    pub(crate) const OPEN: &str = "<think>";
    /// What it ends with.
    pub(crate) const CLOSE: &str = "</think>";
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
    pub(super) fn new(format: ReasoningFormat, place: ReasoningPlace) -> Self {
        let is_implied = format == ReasoningFormat::DeepSeekR1 || place == ReasoningPlace::Open;
        let place = match place {
            ReasoningPlace::Closed => Place::After,
            _ => Place::Start(Marker::new(ReasoningFormat::OPEN), String::new()),
        };
        Self { place, is_implied }
    }

    /// Whether what follows is reasoning.
    pub(super) fn has_begun(&self) -> bool {
        matches!(self.place, Place::Inside(_))
    }

    /// Whether what follows is no reasoning.
    pub(super) fn has_ended(&self) -> bool {
        matches!(self.place, Place::After)
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
                    self.place = Place::Inside(Marker::new(ReasoningFormat::CLOSE));
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
        let place =
            if self.is_implied { Place::Inside(Marker::new(ReasoningFormat::CLOSE)) } else { Place::After };
        if let Place::Start(_, held) = std::mem::replace(&mut self.place, place) {
            held.chars().for_each(|c| self.take(c, sink, answer));
        }
    }
}
