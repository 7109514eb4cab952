//! A server from its start to its end.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::{Duration, Instant};

use quire_engine::EngineClient;
use tokio::runtime::Runtime;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::listener::{self, Listening, Patience};
use super::service::Service;
use super::tls::Reloader;
use super::watchdog;
use crate::signal::Loading;

/// How long clients may take to read that they were given up: at the deadline, and at a second signal.
const LAST_WORDS: [Duration; 2] = [Duration::from_secs(2), Duration::from_millis(200)];

/// How long tasks without a request, and what they hold, are waited for.
const LAST_TASKS: Duration = Duration::from_millis(500);

/// A server from its first connection to its end.
pub(crate) struct Server {
    pub(crate) service: Arc<Service>,
    pub(crate) listening: Listening,
    /// Looks after the certificate, where connections are secured.
    pub(crate) reloader: Option<Reloader>,
    /// How long requests may go on once the server was told to end.
    pub(crate) shutdown_timeout: Duration,
}

impl Server {
    /// Answers until SIGTERM or Ctrl-C, and then to the end of what is running; whether that has ended, and was not given up.
    ///
    /// # Errors
    ///
    /// What keeps it from listening, or from hearing signals.
    pub(crate) async fn run(self, listener: TcpListener, loading: Loading) -> io::Result<bool> {
        let mut stop = StopSignal::new()?;
        drop(loading);
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let address = listener.local_addr()?;
        let names = self.service.settings.served_names.join(", ");
        let scheme = if self.listening.tls.is_some() { "https" } else { "http" };
        tracing::info!(target: "quire::server", "{names} is served on {scheme}://{address}");
        tokio::spawn(watchdog::watch(Arc::clone(&self.service)));
        if let Some(reloader) = self.reloader {
            tokio::spawn(reloader.run());
        }
        let drained = drained(&self.service, self.shutdown_timeout, &mut stop);
        listener::serve(listener, self.listening, drained).await;
        tracing::info!(target: "quire::server", "the server has ended");
        Ok(!self.service.lifecycle.has_given_up())
    }
}

/// Ends what a server leaves, as the last thing that the process does. What computes for nobody any more ends with the process: it
/// is not waited for.
pub(crate) fn leave(runtime: Runtime, engine: Arc<dyn EngineClient>, has_drained: bool) {
    if has_drained {
        runtime.shutdown_timeout(LAST_TASKS);
    } else {
        // Dropping the engine would wait for the step that the device is at.
        std::mem::forget(engine);
        runtime.shutdown_background();
    }
}

/// Returns when the server was told to end and what was running has ended, or may take no longer; what it returns does so
/// when clients may take no longer to read what has been answered.
async fn drained<'s>(
    service: &Service,
    patience: Duration,
    stop: &'s mut StopSignal,
) -> Patience<impl Future<Output = ()> + use<'s>> {
    stop.recv().await;
    let started = Instant::now();
    let lifecycle = &service.lifecycle;
    lifecycle.drain();
    let num_open = lifecycle.num_open();
    tracing::info!(
        target: "quire::server",
        "shutting down: {num_open} requests are answered still, for at most {} s; a second signal ends at once",
        patience.as_secs()
    );
    let left = tokio::select! {
        () = lifecycle.idle() => patience.saturating_sub(started.elapsed()),
        () = tokio::time::sleep(patience) => {
            tracing::warn!(target: "quire::server", "{} requests are given up", lifecycle.num_open());
            lifecycle.give_up();
            LAST_WORDS[0]
        }
        () = stop.recv() => {
            tracing::warn!(target: "quire::server", "a second signal: {} requests are given up", lifecycle.num_open());
            lifecycle.give_up();
            LAST_WORDS[1]
        }
    };
    Patience(async move {
        tokio::select! {
            () = tokio::time::sleep(left) => {}
            () = stop.recv() => {}
        }
    })
}

/// SIGTERM or Ctrl-C.
struct StopSignal {
    terminate: Signal,
    interrupt: Signal,
}

impl StopSignal {
    fn new() -> io::Result<Self> {
        Ok(Self { terminate: signal(SignalKind::terminate())?, interrupt: signal(SignalKind::interrupt())? })
    }

    async fn recv(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
