//! Where the state machines write.

use super::call_id::CallIds;
use super::delta::ChatDelta;

/// Collects what a text says. White space before and after calls is layout and no content.
#[derive(Debug)]
pub(super) struct Sink {
    deltas: Vec<ChatDelta>,
    ids: CallIds,
    num_calls: u32,
    /// White space that is content if content follows, or if the text ends and no call was the last.
    held_space: String,
    is_after_call: bool,
}

impl Sink {
    pub(super) fn new(ids: CallIds) -> Self {
        Self { deltas: Vec::new(), ids, num_calls: 0, held_space: String::new(), is_after_call: false }
    }

    pub(super) fn num_calls(&self) -> u32 {
        self.num_calls
    }

    pub(super) fn take(&mut self) -> Vec<ChatDelta> {
        std::mem::take(&mut self.deltas)
    }

    pub(super) fn reasoning(&mut self, text: &str) {
        match self.deltas.last_mut() {
            _ if text.is_empty() => {}
            Some(ChatDelta::Reasoning(last)) => last.push_str(text),
            _ => self.deltas.push(ChatDelta::Reasoning(text.to_owned())),
        }
    }

    /// Content as it is.
    pub(super) fn plain_content(&mut self, text: &str) {
        match self.deltas.last_mut() {
            _ if text.is_empty() => {}
            Some(ChatDelta::Content(last)) => last.push_str(text),
            _ => self.deltas.push(ChatDelta::Content(text.to_owned())),
        }
    }

    /// Content, whose white space at the end may turn out to be that before a call.
    pub(super) fn content(&mut self, text: &str) {
        let end = text.trim_end().len();
        if end > 0 {
            let space = std::mem::take(&mut self.held_space);
            self.plain_content(&space);
            self.plain_content(&text[..end]);
            self.is_after_call = false;
        }
        self.held_space.push_str(&text[end..]);
    }

    pub(super) fn begin_call(&mut self, name: String) {
        self.held_space.clear();
        self.is_after_call = true;
        let index = self.num_calls;
        self.deltas.push(ChatDelta::ToolCall { index, id: self.ids.id(index), name });
        self.num_calls += 1;
    }

    /// More arguments of the call that began last.
    pub(super) fn arguments(&mut self, text: &str) {
        let Some(index) = self.num_calls.checked_sub(1) else { return };
        match self.deltas.last_mut() {
            _ if text.is_empty() => {}
            Some(ChatDelta::Arguments { index: last, part }) if *last == index => part.push_str(text),
            _ => self.deltas.push(ChatDelta::Arguments { index, part: text.to_owned() }),
        }
    }

    /// The text ends.
    pub(super) fn finish(&mut self) {
        let space = std::mem::take(&mut self.held_space);
        if !self.is_after_call {
            self.plain_content(&space);
        }
    }
}
