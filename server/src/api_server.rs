//! The HTTP server as a value, for programs that have an engine of their own.

use std::io;
use std::net::TcpListener;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use quire_engine::{EngineClient, Histogram};

use crate::error::{Error, Result};
use crate::http::listener::{self, HEAD_TIMEOUT, Listening, Patience};
use crate::http::{HttpSettings, Service, routes, watchdog};

/// What `quire serve` answers with, on any engine: OpenAI's API, metrics, the live page.
///
/// ```
/// # use quire::engine::{AsyncLlm, EngineConfig, EngineOptions, EngineParts, ModelFacts};
/// # use quire::scheduler;
/// use std::net::TcpListener;
/// use std::sync::Arc;
///
/// use quire::ApiServer;
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let config = EngineConfig::resolve(EngineOptions::new("tiny"), ModelFacts { max_model_len: 64 })?;
/// # let executor = quire_executor::testing::ScriptedExecutor::new(
/// #     quire_executor::testing::ScriptedExecutor::small_capacity(64, 4), |_, _| 5);
/// # let engine = AsyncLlm::start(EngineParts::new(config, Box::new(executor)))?;
/// let server = ApiServer::new(Arc::new(engine))?;
/// let listener = TcpListener::bind("127.0.0.1:0")?;
/// let until = async { /* a signal, a message, ... */ };
/// tokio::runtime::Runtime::new()?.block_on(server.serve(listener, until))?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ApiServer {
    service: Arc<Service>,
    router: Router,
}

/// How long a client may take none of what is sent to it, and all of it at the end.
const WRITE_TIMEOUT: Duration = Duration::from_secs(60);

impl ApiServer {
    /// A server under the name of the engine's model. It asks for no key, and has the limits of `quire serve`.
    ///
    /// # Errors
    ///
    /// Where the system has no thread for it.
    pub fn new(engine: Arc<dyn EngineClient>) -> Result<Self> {
        let settings = HttpSettings::new(vec![engine.model().name.clone()]);
        let service = Arc::new(Service::new(engine, settings).map_err(Error::Runtime)?);
        let router = routes::router(Arc::clone(&service))?;
        Ok(Self { service, router })
    }

    /// Answers connections until `until` returns, and then to the end of what is open.
    ///
    /// # Errors
    ///
    /// A listener that cannot be used.
    pub async fn serve(&self, listener: TcpListener, until: impl Future<Output = ()>) -> io::Result<()> {
        listener.set_nonblocking(true)?;
        let listener = tokio::net::TcpListener::from_std(listener)?;
        let listening = Listening {
            router: self.router.clone(),
            tls: None,
            write_timeout: WRITE_TIMEOUT,
            head_timeout: HEAD_TIMEOUT,
            write_times: self.service.write_times.clone(),
            error_form: self.service.settings.error_form,
        };
        let watching = tokio::spawn(watchdog::watch(Arc::clone(&self.service)));
        let ended = async {
            until.await;
            self.service.lifecycle.drain();
            self.service.lifecycle.idle().await;
            Patience(tokio::time::sleep(WRITE_TIMEOUT))
        };
        listener::serve(listener, listening, ended).await;
        watching.abort();
        Ok(())
    }

    /// Seconds from the commit of a step to the moment that the tokens which it brought lay in their sockets: a value for
    /// each piece that was streamed.
    pub fn write_times(&self) -> Histogram {
        self.service.write_times.histogram()
    }
}
