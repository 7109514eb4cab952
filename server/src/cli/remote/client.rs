//! A client of one server.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::net::TcpStream;

use super::Url;

/// A connection that takes one request at a time.
type Connection = SendRequest<Full<Bytes>>;

/// Speaks with one server, over as many connections as are needed at once.
#[derive(Debug)]
pub(crate) struct Client {
    url: Url,
    api_key: Option<String>,
    idle: Mutex<Vec<Connection>>,
}

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum ClientError {
    #[error("{0}")]
    Connection(String),
    #[error("status {status}: {message}")]
    Status { status: u16, message: String },
    #[error("the stream ended early: {0}")]
    Stream(String),
}

impl Client {
    pub(crate) fn new(url: Url, api_key: Option<String>) -> Self {
        Self { url, api_key, idle: Mutex::default() }
    }

    /// Sends a request: its answer, once the head is there, and the connection, for [`keep`](Self::keep).
    ///
    /// # Errors
    ///
    /// A connection that fails; a status that is not a success, with what the server says of it.
    pub(crate) async fn send(
        &self,
        method: &str,
        path: &str,
        body: Bytes,
    ) -> Result<(Response<Incoming>, Connection), ClientError> {
        let mut connection = self.connection().await?;
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url.base));
        request = request
            .header(header::HOST, &self.url.authority)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.api_key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        let request = request.body(Full::new(body)).map_err(connection_error)?;
        let response = connection.send_request(request).await.map_err(connection_error)?;
        if response.status().is_success() {
            return Ok((response, connection));
        }
        let status = response.status().as_u16();
        let message = read(response).await?.pointer("/error/message").map(Value::to_string);
        Err(ClientError::Status { status, message: message.unwrap_or_default() })
    }

    /// Keeps a connection whose answer was read to its end.
    pub(crate) fn keep(&self, connection: Connection) {
        self.idle.lock().push(connection);
    }

    async fn connection(&self) -> Result<Connection, ClientError> {
        loop {
            let idle = self.idle.lock().pop();
            match idle {
                Some(connection) if connection.is_ready() => return Ok(connection),
                Some(_) => {}
                None => break,
            }
        }
        let stream = TcpStream::connect(&self.url.authority).await.map_err(connection_error)?;
        let _ = stream.set_nodelay(true);
        let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(connection_error)?;
        tokio::spawn(connection);
        Ok(sender)
    }
}

/// A whole body as JSON; null where it is none.
pub(crate) async fn read(response: Response<Incoming>) -> Result<Value, ClientError> {
    let bytes = response.into_body().collect().await.map_err(connection_error)?.to_bytes();
    Ok(serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

pub(crate) fn connection_error(error: impl std::error::Error) -> ClientError {
    ClientError::Connection(crate::error::with_causes(&error))
}
