//! What the program does at a signal.

use std::fmt::Display;
use std::io::{self, Write};
use std::path::PathBuf;

use quire_engine::{Explainer, write_recording};
use quire_scheduler::record::FlightRecorder;

/// While this lives, SIGTERM and Ctrl-C end the program with success: what is still being loaded has nothing to drain.
#[derive(Debug)]
pub(crate) struct Loading {
    _ended: tokio::sync::oneshot::Sender<()>,
}

impl Loading {
    /// From now on. Where signals cannot be heard, they end the program as the system has it.
    pub(crate) fn begin() -> Self {
        let (sender, ended) = tokio::sync::oneshot::channel();
        let (installed, is_installed) = std::sync::mpsc::channel();
        let wait = move || {
            if let Err(error) = end_at_signal(ended, installed) {
                tracing::debug!(target: "quire::server", "signals while loading are not heard: {error}");
            }
        };
        if std::thread::Builder::new().name("quire-loading".to_owned()).spawn(wait).is_ok() {
            let _ = is_installed.recv();
        }
        Self { _ended: sender }
    }
}

#[cfg(unix)]
fn end_at_signal(
    ended: tokio::sync::oneshot::Receiver<()>,
    installed: std::sync::mpsc::Sender<()>,
) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let (mut terminate, mut interrupt) =
            (signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?);
        drop(installed);
        tokio::select! {
            _ = ended => return Ok(()),
            _ = terminate.recv() => {}
            _ = interrupt.recv() => {}
        }
        tracing::info!(target: "quire::server", "told to end before the model was loaded");
        std::process::exit(0)
    })
}

#[cfg(not(unix))]
fn end_at_signal(
    _ended: tokio::sync::oneshot::Receiver<()>,
    _installed: std::sync::mpsc::Sender<()>,
) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// From now on a SIGUSR2 writes to standard error what each request waits for: who asks is answered, whatever the log's
/// filter lets through. The engine goes on.
pub(crate) fn explain_waits(explainer: Explainer) {
    let wait = move || {
        if let Err(error) = listen_for_questions(&explainer) {
            tracing::debug!(target: "quire::server", "no explanations at SIGUSR2: {error}");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("quire-explain".to_owned()).spawn(wait) {
        tracing::debug!(target: "quire::server", "no explanations at SIGUSR2: {error}");
    }
}

#[cfg(unix)]
fn listen_for_questions(explainer: &Explainer) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let mut signals = runtime.block_on(async { signal(SignalKind::user_defined2()) })?;
    while runtime.block_on(signals.recv()).is_some() {
        match explainer.explain_all() {
            Ok(all) if all.is_empty() => say(&"no request is open"),
            Ok(all) => all.iter().for_each(|one| say(one)),
            Err(_) => break,
        }
    }
    Ok(())
}

#[cfg(not(unix))]
fn listen_for_questions(_explainer: &Explainer) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// From now on a SIGUSR1 writes what the recorder holds to a new file in `folder`, and says on standard error where. The
/// engine goes on.
/// Where there is no such signal, or it cannot be had, the program works all the same.
pub(crate) fn write_recordings(recorder: FlightRecorder, folder: PathBuf) {
    let wait = move || {
        if let Err(error) = listen(&recorder, &folder) {
            tracing::debug!(target: "quire::server", "no recordings at SIGUSR1: {error}");
        }
    };
    if let Err(error) = std::thread::Builder::new().name("quire-signal".to_owned()).spawn(wait) {
        tracing::debug!(target: "quire::server", "no recordings at SIGUSR1: {error}");
    }
}

#[cfg(unix)]
fn listen(recorder: &FlightRecorder, folder: &std::path::Path) -> io::Result<()> {
    use tokio::signal::unix::{SignalKind, signal};

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        let mut signals = signal(SignalKind::user_defined1())?;
        tracing::debug!(target: "quire::server", "SIGUSR1 writes a recording to {}", folder.display());
        while signals.recv().await.is_some() {
            match write_recording(recorder, folder) {
                Ok(path) => say(&format_args!("recording written to {}", path.display())),
                Err(error) => say(&format_args!("recording to {}: {error}", folder.display())),
            }
        }
        Ok(())
    })
}

#[cfg(not(unix))]
fn listen(_recorder: &FlightRecorder, _folder: &std::path::Path) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Calls `tell` at the first SIGINT or SIGTERM from now on, in place of what ends the process. Where signals cannot be had,
/// they end it.
pub(crate) fn at_interrupt(tell: impl FnOnce() + Send + 'static) {
    let waiting = interruption().and_then(|wait| {
        let wait = move || {
            wait();
            tell();
        };
        std::thread::Builder::new().name("quire-interrupt".to_owned()).spawn(wait)
    });
    if let Err(error) = waiting {
        tracing::debug!(target: "quire::server", "a signal ends the process: {error}");
    }
}

/// What waits for a signal; from here on none is missed.
#[cfg(unix)]
fn interruption() -> io::Result<impl FnOnce() + Send> {
    use tokio::signal::unix::{SignalKind, signal};

    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    let context = runtime.enter();
    let (mut interrupt, mut terminate) = (signal(SignalKind::interrupt())?, signal(SignalKind::terminate())?);
    drop(context);
    Ok(move || {
        runtime.block_on(async {
            tokio::select! {
                _ = interrupt.recv() => {}
                _ = terminate.recv() => {}
            }
        });
    })
}

#[cfg(not(unix))]
fn interruption() -> io::Result<fn()> {
    Err(io::ErrorKind::Unsupported.into())
}

/// Standard error may be closed or full, which is no reason to end.
fn say(what: &dyn Display) {
    let _ = writeln!(io::stderr(), "{what}");
}
