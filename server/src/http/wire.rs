//! A way from streamed answers to their socket, past the buffers of HTTP.
//!
//! HTTP takes a body piece by piece: a task is woken, asks the body, copies, and writes. For a thousand streams that each
//! have a token at the same moment that is most of the work. So what is streamed goes out as whole chunks of the body by the
//! thread that has written it, while HTTP itself has nothing to send, and through HTTP otherwise.

use std::collections::VecDeque;
use std::io::{self, Read};
use std::net::Shutdown;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Bytes;
use parking_lot::Mutex;
use socket2::SockRef;
use tokio::io::{Interest, ReadBuf};
use tokio::net::TcpStream;

use super::wired_socket::WiredSocket;

/// How long a connection that has ended waits for its client to close it as well.
const LINGER_TIME: Duration = Duration::from_secs(1);

/// What a client may send meanwhile.
const MAX_LINGER_BYTES: usize = 1 << 20;

/// What is read before HTTP asks for it.
const MAX_AHEAD_BYTES: usize = 4 << 20;

/// How long HTTP is waited for, which has not taken that.
const AHEAD_PAUSE: Duration = Duration::from_millis(20);

/// The way past HTTP to one socket. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Wire(pub(super) Arc<Shared>);

/// What the way and the socket of HTTP share.
#[derive(Debug)]
pub(super) struct Shared {
    pub(super) socket: TcpStream,
    pub(super) state: Mutex<State>,
}

#[derive(Debug, Default)]
pub(super) struct State {
    pub(super) stage: Stage,
    /// What the socket did not take of the last chunk: it goes before all else.
    pub(super) rest: Bytes,
    /// What was read before HTTP has asked for it: see [`Wire::hung_up`].
    pub(super) ahead: VecDeque<u8>,
}

impl State {
    /// Hands on what was read ahead, if there is any.
    pub(super) fn take_ahead(&mut self, into: &mut ReadBuf<'_>) -> bool {
        let first = self.ahead.as_slices().0;
        let num = first.len().min(into.remaining());
        into.put_slice(&first[..num]);
        self.ahead.drain(..num);
        if self.ahead.is_empty() {
            // Few connections have any: it is not kept for the next time.
            self.ahead = VecDeque::new();
        }
        num > 0
    }
}

/// Who may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Stage {
    /// HTTP alone.
    #[default]
    Closed,
    /// HTTP has all that the body has for it: once that is sent the way is open.
    Flushing,
    /// The body's chunks.
    Open,
}

/// What became of a chunk.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sent {
    All,
    /// The connection's task must be woken to send the rest.
    Begun,
    /// Nothing of it: it has to go through HTTP.
    Not,
}

impl Wire {
    /// The way to a socket, and the socket for HTTP: what it writes fails when the client has taken nothing for as long as
    /// `write_timeout`.
    pub(crate) fn of(socket: TcpStream, write_timeout: Duration) -> (Self, WiredSocket) {
        let wire = Self(Arc::new(Shared { socket, state: Mutex::default() }));
        (wire.clone(), WiredSocket::new(wire, write_timeout))
    }

    /// Returns when the client has closed its side, or all of it.
    ///
    /// HTTP reads nothing while it answers and bytes of the next request are there, so it would not hear of it; and an end
    /// behind more than the system keeps comes once that is read. So it is read here, and kept for HTTP, up to a bound: a
    /// long body comes faster than HTTP takes it.
    pub(super) async fn hung_up(&self) {
        let socket = &self.0.socket;
        while let Ok(ready) = socket.ready(Interest::READABLE).await {
            if ready.is_read_closed() {
                return;
            }
            match self.read_ahead() {
                Ok(0) => return,
                Ok(num) if num >= MAX_AHEAD_BYTES => tokio::time::sleep(AHEAD_PAUSE).await,
                Ok(_) => {}
                Err(error) => match error.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => {}
                    _ => return,
                },
            }
        }
    }

    /// Reads a piece for HTTP: what is kept of it then. Zero is the end.
    fn read_ahead(&self) -> io::Result<usize> {
        let (mut piece, mut state) = ([0; 16 << 10], self.0.state.lock());
        if state.ahead.len() >= MAX_AHEAD_BYTES {
            return Ok(state.ahead.len());
        }
        let num = self.0.socket.try_read(&mut piece)?;
        state.ahead.extend(&piece[..num]);
        Ok(if num == 0 { 0 } else { state.ahead.len() })
    }

    /// Passes over what the client still sends after the last answer, until it has read that and closed, but not for long: a
    /// socket that is closed with bytes unread takes what it has sent back.
    pub(super) async fn linger(&self) {
        let (socket, mut passed_over) = (&self.0.socket, [0; 4096]);
        let to_end = async {
            let mut num_left = MAX_LINGER_BYTES;
            while num_left > 0 {
                match (&*SockRef::from(socket)).read(&mut passed_over) {
                    Ok(0) => return,
                    Ok(num) => num_left = num_left.saturating_sub(num),
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => {
                        let nothing: io::Result<()> = Err(error);
                        drop(socket.try_io(Interest::READABLE, || nothing));
                        if socket.readable().await.is_err() {
                            return;
                        }
                    }
                    Err(_) => return,
                }
            }
        };
        if SockRef::from(socket).shutdown(Shutdown::Write).is_ok() {
            drop(tokio::time::timeout(LINGER_TIME, to_end).await);
        }
    }

    /// The body has nothing more for HTTP.
    pub(crate) fn open(&self) {
        let mut state = self.0.state.lock();
        if state.stage == Stage::Closed {
            state.stage = Stage::Flushing;
        }
    }

    /// The body has something for HTTP, or has ended.
    pub(crate) fn close(&self) {
        self.0.state.lock().stage = Stage::Closed;
    }

    /// Sends a whole chunk, where it is the body's turn and the socket takes it.
    pub(crate) fn send(&self, chunk: &[u8]) -> Sent {
        let mut state = self.0.state.lock();
        if state.stage != Stage::Open || !state.rest.is_empty() {
            return Sent::Not;
        }
        match self.0.socket.try_write(chunk) {
            Ok(num) if num == chunk.len() => Sent::All,
            Ok(0) | Err(_) => Sent::Not,
            Ok(num) => {
                state.rest = Bytes::copy_from_slice(&chunk[num..]);
                Sent::Begun
            }
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (Wire, WiredSocket, TcpStream) {
        patient_pair(Duration::from_secs(60)).await
    }

    pub(in super::super) async fn patient_pair(write_timeout: Duration) -> (Wire, WiredSocket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let client =
            TcpStream::connect(listener.local_addr().expect("an address")).await.expect("it listens");
        let (wire, socket) = Wire::of(listener.accept().await.expect("a client").0, write_timeout);
        (wire, socket, client)
    }

    #[tokio::test]
    async fn the_way_is_open_once_http_has_sent_what_it_has() {
        let (wire, mut socket, mut client) = pair().await;
        assert_eq!(wire.send(b"a"), Sent::Not, "nobody has asked");
        socket.write_all(b"head").await.expect("sent");
        socket.flush().await.expect("sent");
        assert_eq!(wire.send(b"a"), Sent::Not, "the body may have more for HTTP");
        wire.open();
        assert_eq!(wire.send(b"a"), Sent::Not, "HTTP may not have sent it");
        socket.flush().await.expect("sent");
        assert_eq!(wire.send(b"body"), Sent::All);
        wire.close();
        assert_eq!(wire.send(b"a"), Sent::Not);
        socket.write_all(b"end").await.expect("sent");
        drop((wire, socket));
        let mut text = String::new();
        client.read_to_string(&mut text).await.expect("all of it");
        assert_eq!(text, "headbodyend");
    }

    #[tokio::test]
    async fn what_a_full_socket_leaves_of_a_chunk_goes_before_all_else() {
        let (wire, mut socket, mut client) = pair().await;
        wire.open();
        socket.flush().await.expect("sent");
        let chunk = vec![b'a'; 1 << 20];
        let mut num_chunks = 0;
        loop {
            match wire.send(&chunk) {
                Sent::All => num_chunks += 1,
                Sent::Begun => {
                    num_chunks += 1;
                    break;
                }
                Sent::Not => {
                    panic!("a socket that takes nothing of a chunk has taken part of the one before")
                }
            }
        }
        assert_eq!(wire.send(b"b"), Sent::Not);
        let read = tokio::spawn(async move {
            let mut bytes = Vec::new();
            client.read_to_end(&mut bytes).await.expect("all of it");
            bytes
        });
        socket.write_all(b"end").await.expect("sent");
        drop((wire, socket));
        let bytes = read.await.expect("read");
        assert_eq!(bytes.len(), num_chunks * chunk.len() + 3);
        assert!(bytes.ends_with(b"aend"));
    }

    #[tokio::test]
    async fn the_end_of_a_client_is_heard_of_behind_bytes_that_nobody_reads() {
        let (wire, mut socket, mut client) = pair().await;
        let hung_up = tokio::spawn({
            let wire = wire.clone();
            async move { wire.hung_up().await }
        });
        for text in [b"one", b"two"] {
            client.write_all(text).await.expect("sent");
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert!(!hung_up.is_finished(), "it is there");
        }
        // What was looked past is not lost.
        let mut read = [0; 6];
        socket.read_exact(&mut read).await.expect("both");
        assert_eq!(&read, b"onetwo");
        let waits = tokio::time::timeout(Duration::from_millis(50), socket.read(&mut read)).await;
        assert!(waits.is_err(), "there is nothing more");
        client.write_all(b"end").await.expect("sent");
        drop(client);
        hung_up.await.expect("it has left");
        assert_eq!(socket.read(&mut read).await.expect("the last of it"), 3);
        assert_eq!(socket.read(&mut read).await.expect("the end"), 0);
    }
}
