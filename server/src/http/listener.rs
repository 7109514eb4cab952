//! Connections.

use std::io;
use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use socket2::SockRef;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsAcceptor;

use super::clocked::ClockedStream;
use super::connection::{ConnectedService, Connection, Progress};
use super::ending::{Connections, OpenConnection};
use super::error::ErrorForm;
use super::head_faults::{self, ExplainingStream};
use super::wire::Wire;
use super::write_times::WriteTimes;

/// How long a client may take to send the head of a request, and to begin the next one.
pub(crate) const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// How long a handshake may take.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(10);

/// How long a server that ends waits for handshakes and heads that have begun.
const LAST_BEGINNINGS: Duration = Duration::from_millis(100);

/// How long a client may take nothing of the last word that is said to it.
const LAST_WORD_TIMEOUT: Duration = Duration::from_secs(1);

/// Connections that may wait to be accepted, as far as the system allows it: more would be told nothing, or cut off.
const BACKLOG: i32 = 4096;

/// How connections are answered.
#[derive(Clone)]
pub(crate) struct Listening {
    pub(crate) router: Router,
    pub(crate) tls: Option<TlsAcceptor>,
    /// How long a client may take none of what is sent to it.
    pub(crate) write_timeout: Duration,
    /// As [`HEAD_TIMEOUT`].
    pub(crate) head_timeout: Duration,
    /// Where it is noted how long tokens take to the socket.
    pub(crate) write_times: WriteTimes,
    /// That of errors which no route answers with.
    pub(crate) error_form: ErrorForm,
}

/// What returns when clients may take no longer to read what they were answered.
pub(crate) struct Patience<F>(pub(crate) F);

/// Answers connections until `ended` returns; then those that are open are closed when all of their answers is sent, but for
/// those that take longer than it says. Those that ask for nothing yet are closed at once.
pub(crate) async fn serve<F: Future>(
    listener: TcpListener,
    listening: Listening,
    ended: impl Future<Output = Patience<F>>,
) {
    if let Err(error) = SockRef::from(&listener).listen(BACKLOG) {
        tracing::warn!(target: "quire::server", "few connections can wait to be accepted: {error}");
    }
    let connections = Connections::new();
    let mut ended = std::pin::pin!(ended);
    let Patience(given_up) = loop {
        tokio::select! {
            biased;
            patience = &mut ended => break patience,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => drop(tokio::spawn(listening.clone().answer(stream, connections.open()))),
                Err(error) => pause_after(&error).await,
            },
        }
    };
    drop(listener);
    tokio::select! {
        () = connections.end() => {}
        _ = given_up => {}
    }
}

impl Listening {
    async fn answer(self, stream: TcpStream, mut open: OpenConnection) {
        // A token is worth a packet.
        let _ = stream.set_nodelay(true);
        let clock = self.write_times.clock();
        let (wire, stream) = Wire::of(stream, self.write_timeout);
        let Some(tls) = &self.tls else {
            let connection = Connection { clock, wire: Some(wire.clone()) };
            return self.talk(stream, &wire, connection, open).await;
        };
        let connection = Connection { clock, wire: None };
        let secured = tokio::select! {
            biased;
            secured = tokio::time::timeout(HANDSHAKE_TIMEOUT, tls.accept(stream)) => secured,
            () = last_beginnings(&mut open) => return,
        };
        match secured {
            Ok(Ok(stream)) => self.talk(stream, &wire, connection, open).await,
            Ok(Err(error)) => tracing::debug!(target: "quire::server", "a handshake failed: {error}"),
            Err(_) => tracing::debug!(target: "quire::server", "a handshake took too long"),
        }
    }

    /// Answers what comes over one connection. A client that leaves is no error: what it waited for is given up with the
    /// connection.
    async fn talk(
        &self,
        stream: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
        wire: &Wire,
        connection: Connection,
        mut open: OpenConnection,
    ) {
        let mut http = http1::Builder::new();
        http.timer(TokioTimer::new()).header_read_timeout(self.head_timeout);
        let stream = ClockedStream { stream, clock: connection.clock.clone() };
        let stream = ExplainingStream { stream, form: self.error_form, answer: None };
        let (service, progress) = (TowerToHyperService::new(self.router.clone()), Progress::default());
        let service = ConnectedService { service, connection, progress: progress.clone() };
        let mut answering = http.serve_connection(TokioIo::new(stream), service);
        let ended = tokio::select! {
            biased;
            ended = &mut answering => Some(ended),
            () = wire.hung_up() => None,
            () = open.told_to_end() => {
                std::pin::Pin::new(&mut answering).graceful_shutdown();
                tokio::select! {
                    biased;
                    ended = &mut answering => Some(ended),
                    () = wire.hung_up() => None,
                    () = last_head(&progress) => return,
                }
            }
        };
        match ended {
            None => return tracing::debug!(target: "quire::server", "a client has left"),
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::debug!(target: "quire::server", "a connection ended: {error}");
                let rest = answering.into_parts();
                if let Some(text) = head_faults::last_word(&error, &rest.read_buf, self) {
                    say(rest.io.into_inner(), &text).await;
                }
            }
        }
        // Who is still sending gets to read the answer, also of a server that ends; nobody else holds that up.
        let _open = progress.leaves_unread().then_some(open);
        wire.linger().await;
    }
}

/// Returns when a connection that asks for nothing yet is to be closed, since the server ends.
async fn last_beginnings(open: &mut OpenConnection) {
    open.told_to_end().await;
    tokio::time::sleep(LAST_BEGINNINGS).await;
}

/// Returns where no head has come a moment later.
async fn last_head(progress: &Progress) {
    tokio::time::sleep(LAST_BEGINNINGS).await;
    if progress.has_asked() {
        std::future::pending::<()>().await;
    }
}

/// Says the last word over a connection, if it is heard.
async fn say(mut stream: impl AsyncWrite + Unpin, text: &[u8]) {
    let said = async {
        if stream.write_all(text).await.is_ok() {
            drop(stream.shutdown().await);
        }
    };
    drop(tokio::time::timeout(LAST_WORD_TIMEOUT, said).await);
}

/// The process has no more files, or a client left at once: the next one may do better.
async fn pause_after(error: &io::Error) {
    tracing::warn!(target: "quire::server", "a connection could not be accepted: {error}");
    tokio::time::sleep(Duration::from_millis(50)).await;
}

#[cfg(test)]
mod tests {
    use axum::routing::get;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::sync::oneshot;

    use super::*;

    const LEN: usize = 16 << 20;

    #[tokio::test]
    async fn what_has_been_answered_is_sent_to_its_end_unless_that_takes_too_long() {
        for is_given_up in [false, true] {
            let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
            let address = listener.local_addr().expect("bound");
            let listening = Listening {
                router: Router::new().route("/", get(|| async { vec![b'x'; LEN] })),
                tls: None,
                write_timeout: Duration::from_secs(60),
                head_timeout: HEAD_TIMEOUT,
                write_times: WriteTimes::default(),
                error_form: ErrorForm::Nested,
            };
            let (end, ended) = oneshot::channel::<()>();
            let patience = Duration::from_secs(if is_given_up { 0 } else { 60 });
            let ended = async move {
                let _ = ended.await;
                Patience(tokio::time::sleep(patience))
            };
            let server = tokio::spawn(serve(listener, listening, ended));
            let mut client = TcpStream::connect(address).await.expect("somebody listens");
            client.write_all(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n").await.expect("taken");
            let mut head = [0; 16];
            client.read_exact(&mut head).await.expect("an answer");
            end.send(()).expect("the server runs");
            // Longer than the end of a connection takes that has nothing to say.
            tokio::time::sleep(Duration::from_millis(2200)).await;
            assert_eq!(server.is_finished(), is_given_up);
            if !is_given_up {
                let mut rest = Vec::new();
                client.read_to_end(&mut rest).await.expect("to its end");
                assert!(rest.len() > LEN && rest.ends_with(b"xxx"), "{} bytes", rest.len());
                server.await.expect("it ends");
            }
        }
    }
}
