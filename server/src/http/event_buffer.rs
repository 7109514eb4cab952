//! Server-sent events that have not been sent.

use axum::body::Bytes;
use serde::Serialize;

use super::wire::Sent;

/// Events in a row, with room around them for what makes them a chunk of a body: nothing is copied to send them.
#[derive(Debug, Default)]
pub(crate) struct Events {
    bytes: Vec<u8>,
    /// How many of them are whole events.
    num_whole: usize,
}

/// What a chunk begins with: its size in hexadecimal digits, and a line break.
const ROOM: usize = 10;

const LINE_END: &[u8] = b"\r\n";

impl Events {
    /// Adds an event.
    pub(crate) fn data(&mut self, value: &impl Serialize) {
        self.begin();
        self.json(value);
        self.end();
    }

    /// Begins an event, whose JSON is then written in parts.
    pub(crate) fn begin(&mut self) {
        if self.bytes.is_empty() {
            self.bytes.resize(ROOM, 0);
        }
        self.text(b"data: ");
    }

    /// Adds a part of its JSON.
    pub(crate) fn text(&mut self, part: &[u8]) {
        self.bytes.extend_from_slice(part);
    }

    /// Adds a value to it.
    pub(crate) fn json(&mut self, value: &impl Serialize) {
        serde_json::to_writer(&mut self.bytes, value)
            .expect("wire types have text keys, and a vector takes all");
    }

    /// Ends the event.
    pub(crate) fn end(&mut self) {
        self.text(b"\n\n");
        self.num_whole = self.bytes.len();
    }

    /// Forgets an event that was begun and not ended.
    pub(crate) fn cut(&mut self) {
        self.bytes.truncate(self.num_whole);
    }

    /// Adds what comes after the last event.
    pub(crate) fn done(&mut self) {
        self.begin();
        self.text(b"[DONE]");
        self.end();
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bytes.len() <= ROOM
    }

    pub(crate) fn num_bytes(&self) -> usize {
        self.bytes.len().saturating_sub(ROOM)
    }

    /// Hands all events over as one chunk. They stay where nothing of it was sent.
    pub(crate) fn send(&mut self, send: impl FnOnce(&[u8]) -> Sent) -> Sent {
        let len = self.bytes.len();
        self.bytes.extend_from_slice(LINE_END);
        let start = self.write_size(len - ROOM);
        let sent = send(&self.bytes[start..]);
        // A stream's next events are likely to be as long.
        self.num_whole = if sent == Sent::Not { len } else { ROOM };
        self.bytes.truncate(self.num_whole);
        sent
    }

    /// All events, to be sent by somebody else.
    pub(crate) fn take(&mut self) -> Bytes {
        let mut next = Vec::with_capacity(self.bytes.len() + LINE_END.len());
        next.resize(ROOM, 0);
        self.num_whole = ROOM;
        Bytes::from(std::mem::replace(&mut self.bytes, next)).slice(ROOM..)
    }

    /// Writes a chunk's size into the end of the room; returns where it begins.
    fn write_size(&mut self, mut size: usize) -> usize {
        let mut start = ROOM - LINE_END.len();
        self.bytes[start..ROOM].copy_from_slice(LINE_END);
        while size > 0 && start > 0 {
            start -= 1;
            self.bytes[start] = b"0123456789abcdef"[size % 16];
            size /= 16;
        }
        assert!(size == 0, "a chunk has less than four gigabytes");
        start
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn events_are_a_chunk_until_they_are_sent() {
        let mut events = Events::default();
        assert!(events.is_empty());
        events.data(&"a");
        let (mut tried, mut sent) = (Vec::new(), Vec::new());
        let mut send = |chunk: &[u8]| {
            tried.extend_from_slice(chunk);
            Sent::Not
        };
        assert_eq!(events.send(&mut send), Sent::Not);
        assert_eq!(tried, b"b\r\ndata: \"a\"\n\n\r\n");
        events.begin();
        events.text(b"[1");
        events.json(&2);
        events.text(b"]");
        events.end();
        assert_eq!(
            events.send(|chunk| {
                sent.extend_from_slice(chunk);
                Sent::All
            }),
            Sent::All
        );
        assert_eq!(sent, b"17\r\ndata: \"a\"\n\ndata: [12]\n\n\r\n".as_slice());
        assert!(events.is_empty());
        events.done();
        events.begin();
        events.cut();
        assert_eq!(events.take(), "data: [DONE]\n\n");
        assert!(events.is_empty());
    }
}
