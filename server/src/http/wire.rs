//! A way from streamed answers to their socket, past the buffers of HTTP.
//!
//! HTTP takes a body piece by piece: a task is woken, asks the body, copies, and writes. For a thousand streams that each
//! have a token at the same moment that is most of the work. So what is streamed goes out as whole chunks of the body by the
//! thread that has written it, while HTTP itself has nothing to send, and through HTTP otherwise.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};

use parking_lot::Mutex;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

/// The way past HTTP to one socket. Cheap to clone.
#[derive(Clone, Debug)]
pub(crate) struct Wire(Arc<Shared>);

#[derive(Debug)]
struct Shared {
    socket: TcpStream,
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    stage: Stage,
    /// What the socket did not take of the last chunk: it goes before all else.
    rest: Vec<u8>,
}

/// Who may write.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Stage {
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
    /// The way to a socket, and the socket for HTTP.
    pub(crate) fn of(socket: TcpStream) -> (Self, WiredSocket) {
        let wire = Self(Arc::new(Shared { socket, state: Mutex::default() }));
        (wire.clone(), WiredSocket(wire))
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
                state.rest.extend_from_slice(&chunk[num..]);
                Sent::Begun
            }
        }
    }
}

/// A socket as HTTP has it, with a [`Wire`] beside.
#[derive(Debug)]
pub(crate) struct WiredSocket(Wire);

impl WiredSocket {
    fn socket(&self) -> &TcpStream {
        &self.0.0.socket
    }

    /// Sends what is left of a chunk.
    fn poll_rest(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let mut state = self.0.0.state.lock();
        while !state.rest.is_empty() {
            let num = ready!(poll_io(self.socket(), cx, |socket| socket.try_write(&state.rest)))?;
            if num == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            state.rest.drain(..num);
        }
        Poll::Ready(Ok(()))
    }
}

/// Writes once the socket is ready to take something.
fn poll_io<T>(
    socket: &TcpStream,
    cx: &mut Context<'_>,
    mut write: impl FnMut(&TcpStream) -> io::Result<T>,
) -> Poll<io::Result<T>> {
    loop {
        ready!(socket.poll_write_ready(cx))?;
        match write(socket) {
            // It was not ready after all, and will say when it is.
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
            done => return Poll::Ready(done),
        }
    }
}

impl AsyncRead for WiredSocket {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        loop {
            ready!(self.socket().poll_read_ready(cx))?;
            match self.socket().try_read(into.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) => return Poll::Ready(Err(error)),
                Ok(num) => {
                    into.advance(num);
                    return Poll::Ready(Ok(()));
                }
            }
        }
    }
}

impl AsyncWrite for WiredSocket {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        ready!(self.poll_rest(cx))?;
        poll_io(self.socket(), cx, |socket| socket.try_write(bytes))
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        ready!(self.poll_rest(cx))?;
        poll_io(self.socket(), cx, |socket| socket.try_write_vectored(parts))
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// HTTP calls it once its own buffer is empty: with a body that has nothing for it, the way is open.
    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_rest(cx))?;
        let mut state = self.0.0.state.lock();
        if state.stage == Stage::Flushing {
            state.stage = Stage::Open;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_rest(cx))?;
        Poll::Ready(SockRef::from(self.socket()).shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;

    async fn pair() -> (Wire, WiredSocket, TcpStream) {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let client =
            TcpStream::connect(listener.local_addr().expect("an address")).await.expect("it listens");
        let (wire, socket) = Wire::of(listener.accept().await.expect("a client").0);
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
}
