//! A socket as HTTP has it.

use std::io;
use std::net::Shutdown;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;

use super::stall::Stall;
use super::wire::{Stage, Wire};

/// A socket as HTTP has it, with a [`Wire`] beside.
#[derive(Debug)]
pub(crate) struct WiredSocket {
    wire: Wire,
    stall: Stall,
}

impl WiredSocket {
    /// One whose writes fail when the client has taken nothing for as long as `write_timeout`.
    pub(super) fn new(wire: Wire, write_timeout: Duration) -> Self {
        Self { wire, stall: Stall::new(write_timeout) }
    }

    fn socket(&self) -> &TcpStream {
        &self.wire.0.socket
    }

    /// Sends what is left of a chunk.
    fn poll_rest(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        let shared = &*self.wire.0;
        let mut state = shared.state.lock();
        while !state.rest.is_empty() {
            let write = |socket: &TcpStream| socket.try_write(&state.rest);
            let num = ready!(poll_taken(&shared.socket, &mut self.stall, cx, &state.rest, write))?;
            if num == 0 {
                return Poll::Ready(Err(io::ErrorKind::WriteZero.into()));
            }
            state.rest = state.rest.slice(num..);
        }
        Poll::Ready(Ok(()))
    }
}

/// Writes once the socket takes something. `first` is what `write` would write first.
fn poll_taken(
    socket: &TcpStream,
    stall: &mut Stall,
    cx: &mut Context<'_>,
    first: &[u8],
    write: impl FnMut(&TcpStream) -> io::Result<usize>,
) -> Poll<io::Result<usize>> {
    if let Poll::Ready(taken) = poll_io(socket, cx, write) {
        stall.end();
        return Poll::Ready(taken);
    }
    ready!(stall.poll(cx));
    // A socket is ready when a third of its buffer is free: one that is read slowly may have less, and take something yet.
    stall.end();
    Poll::Ready(match SockRef::from(socket).send(first) {
        Err(error) if error.kind() == io::ErrorKind::WouldBlock => Err(io::ErrorKind::TimedOut.into()),
        taken => taken,
    })
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
        let shared = &*self.wire.0;
        if shared.state.lock().take_ahead(into) {
            return Poll::Ready(Ok(()));
        }
        loop {
            ready!(shared.socket.poll_read_ready(cx))?;
            match shared.socket.try_read(into.initialize_unfilled()) {
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => {}
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
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
        let this = self.get_mut();
        ready!(this.poll_rest(cx))?;
        let write = |socket: &TcpStream| socket.try_write(bytes);
        poll_taken(&this.wire.0.socket, &mut this.stall, cx, bytes, write)
    }

    fn poll_write_vectored(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        parts: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let this = self.get_mut();
        ready!(this.poll_rest(cx))?;
        let first = parts.iter().find(|part| !part.is_empty()).map_or(&[][..], |part| part);
        let write = |socket: &TcpStream| socket.try_write_vectored(parts);
        poll_taken(&this.wire.0.socket, &mut this.stall, cx, first, write)
    }

    fn is_write_vectored(&self) -> bool {
        true
    }

    /// HTTP calls it once its own buffer is empty: with a body that has nothing for it, the way is open.
    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_rest(cx))?;
        let mut state = self.wire.0.state.lock();
        if state.stage == Stage::Flushing {
            state.stage = Stage::Open;
        }
        Poll::Ready(Ok(()))
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        ready!(self.poll_rest(cx))?;
        Poll::Ready(SockRef::from(self.socket()).shutdown(Shutdown::Write))
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::super::wire::Sent;
    use super::super::wire::tests::patient_pair;
    use super::*;

    /// Sends chunks until the socket leaves a part of one, which is the rest that goes before all else.
    fn fill(wire: &Wire) -> usize {
        let chunk = vec![b'a'; 8 << 20];
        let mut len = 0;
        while wire.send(&chunk) == Sent::All {
            len += chunk.len();
        }
        len + chunk.len()
    }

    #[tokio::test]
    async fn a_client_that_reads_slowly_is_waited_for_and_one_that_does_not_is_given_up() {
        let timeout = Duration::from_millis(400);
        for is_read in [true, false] {
            let (wire, mut socket, mut client) = patient_pair(timeout).await;
            wire.open();
            socket.flush().await.expect("sent");
            let len = fill(&wire);
            let write = tokio::spawn(async move { socket.write_all(b"end").await });
            let mut bytes = Vec::new();
            // Far longer than the time, and far less than what makes a socket ready again.
            let mut piece = vec![0; 64 << 10];
            for _ in 0..if is_read { 40 } else { 0 } {
                let num = client.read(&mut piece).await.expect("some");
                bytes.extend_from_slice(&piece[..num]);
                tokio::time::sleep(timeout / 8).await;
            }
            if !is_read {
                let error = write.await.expect("no panic").expect_err("nobody reads");
                assert_eq!(error.kind(), io::ErrorKind::TimedOut);
                continue;
            }
            assert!(!write.is_finished() && bytes.len() < len, "{} of {len} bytes", bytes.len());
            drop(wire);
            client.read_to_end(&mut bytes).await.expect("all of it");
            write.await.expect("no panic").expect("all was taken in time");
            assert!(bytes.len() == len + 3 && bytes.ends_with(b"aend"), "{} of {len} bytes", bytes.len());
        }
    }
}
