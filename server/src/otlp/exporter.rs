//! Sends spans to a collector: OTLP over HTTP, in protobuf.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use axum::body::Bytes;
use axum::http::{Request, Response};
use opentelemetry::trace::TracerProvider;
use opentelemetry_http::{HttpClient, HttpError};
use opentelemetry_otlp::{SpanExporter, WithExportConfig, WithHttpConfig};
use opentelemetry_sdk::Resource;
use opentelemetry_sdk::trace::SdkTracerProvider;
use quire_engine::EngineClient;
use ureq::Agent;

use super::client::TracedClient;
use crate::error::{Error, Result};

/// How long a collector may take.
const TIMEOUT: Duration = Duration::from_secs(10);

/// How long it may take for the last ones, which the end of the program waits for.
const LAST_TIMEOUT: Duration = Duration::from_secs(2);

/// A thread that sends spans in batches. Dropping it sends those that are left.
pub(crate) struct Exporter(SdkTracerProvider);

impl Exporter {
    /// Sends to an address such as `http://localhost:4318/v1/traces`, under the name of `service`.
    ///
    /// # Errors
    ///
    /// An address of another form. Whether somebody listens there is not asked.
    pub(crate) fn start(endpoint: &str, service: &str) -> Result<Self> {
        let refuse = |reason| Error::TracesEndpoint { given: endpoint.to_owned(), reason };
        if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
            return Err(refuse("only OTLP over HTTP is built".to_owned()));
        }
        let agent = Agent::config_builder().timeout_global(Some(TIMEOUT)).build().new_agent();
        let exporter =
            SpanExporter::builder().with_http().with_http_client(Sender(agent)).with_endpoint(endpoint);
        let exporter = exporter.build().map_err(|error| refuse(error.to_string()))?;
        let resource = Resource::builder().with_service_name(service.to_owned()).build();
        let provider = SdkTracerProvider::builder().with_batch_exporter(exporter).with_resource(resource);
        Ok(Self(provider.build()))
    }

    /// An engine whose requests are traced.
    pub(crate) fn trace(&self, engine: Arc<dyn EngineClient>) -> Arc<dyn EngineClient> {
        Arc::new(TracedClient::new(engine, self.0.tracer("quire")))
    }
}

impl Drop for Exporter {
    fn drop(&mut self) {
        if let Err(error) = self.0.shutdown_with_timeout(LAST_TIMEOUT) {
            tracing::warn!(target: "quire::server", "the last traces could not be sent: {error}");
        }
    }
}

/// The client of HTTP that the program has already, on the exporter's own thread.
#[derive(Debug)]
struct Sender(Agent);

#[async_trait]
impl HttpClient for Sender {
    async fn send_bytes(&self, request: Request<Bytes>) -> std::result::Result<Response<Bytes>, HttpError> {
        let (parts, body) = self.0.run(request.map(|body| body.to_vec()))?.into_parts();
        let mut body = body;
        Ok(Response::from_parts(parts, body.read_to_vec()?.into()))
    }
}
