//! Connections.

use std::time::Duration;

use axum::Router;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::server::graceful::GracefulShutdown;
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};

/// How long a client may take to send the head of a request, and to begin the next one.
const HEAD_TIMEOUT: Duration = Duration::from_secs(30);

/// How long connections are waited for that have nothing to answer any more.
const CLOSING_PATIENCE: Duration = Duration::from_secs(2);

/// Answers connections until `ended` returns; then those that are open are closed after the answers they wait for.
pub(crate) async fn serve(listener: TcpListener, router: Router, ended: impl Future<Output = ()>) {
    let connections = GracefulShutdown::new();
    let mut ended = std::pin::pin!(ended);
    loop {
        tokio::select! {
            biased;
            () = &mut ended => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, _)) => answer(stream, router.clone(), &connections),
                Err(error) => pause_after(&error).await,
            },
        }
    }
    drop(listener);
    let _ = tokio::time::timeout(CLOSING_PATIENCE, connections.shutdown()).await;
}

fn answer(stream: TcpStream, router: Router, connections: &GracefulShutdown) {
    // A token is worth a packet.
    let _ = stream.set_nodelay(true);
    let mut http = http1::Builder::new();
    http.timer(TokioTimer::new()).header_read_timeout(HEAD_TIMEOUT);
    let connection = http.serve_connection(TokioIo::new(stream), TowerToHyperService::new(router));
    let watched = connections.watch(connection);
    tokio::spawn(async move {
        // A client that leaves is no error: what it waited for has been given up with the connection.
        if let Err(error) = watched.await {
            tracing::debug!(target: "quire::server", "a connection ended: {error}");
        }
    });
}

/// The process has no more files, or a client left at once: the next one may do better.
async fn pause_after(error: &std::io::Error) {
    tracing::warn!(target: "quire::server", "a connection could not be accepted: {error}");
    tokio::time::sleep(Duration::from_millis(50)).await;
}
