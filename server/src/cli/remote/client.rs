//! A client of one server.

use http_body_util::{BodyExt, Full};
use hyper::body::{Bytes, Incoming};
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper::{Request, Response, header};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use serde_json::Value;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;

use super::{Trust, Url};

/// A connection that takes one request at a time.
type Connection = SendRequest<Full<Bytes>>;

/// Speaks with one server, over as many connections as are needed at once.
#[derive(Debug)]
pub(crate) struct Client {
    url: Url,
    api_key: Option<String>,
    /// Where the address is a secured one.
    trust: Option<Trust>,
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
    /// A client that believes in those certificates, if the address is a secured one.
    pub(crate) fn new(url: Url, api_key: Option<String>, trust: Option<Trust>) -> Self {
        let trust = trust.filter(|_| url.is_secure);
        Self { url, api_key, trust, idle: Mutex::default() }
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
        let mut kept = self.kept();
        loop {
            let was_kept = kept.is_some();
            let mut connection = match kept.take() {
                Some(connection) => connection,
                None => self.connect().await?,
            };
            match connection.send_request(self.request(method, path, body.clone())?).await {
                Ok(response) => return Ok((successful(response).await?, connection)),
                // The server has closed it meanwhile, as it may between two requests.
                Err(_) if was_kept => {}
                Err(error) => return Err(connection_error(error)),
            }
        }
    }

    /// Keeps a connection whose answer was read to its end.
    pub(crate) fn keep(&self, connection: Connection) {
        self.idle.lock().push(connection);
    }

    fn request(&self, method: &str, path: &str, body: Bytes) -> Result<Request<Full<Bytes>>, ClientError> {
        let mut request = Request::builder().method(method).uri(format!("{}{path}", self.url.base));
        request = request
            .header(header::HOST, &self.url.authority)
            .header(header::CONTENT_TYPE, "application/json");
        if let Some(key) = &self.api_key {
            request = request.header(header::AUTHORIZATION, format!("Bearer {key}"));
        }
        request.body(Full::new(body)).map_err(connection_error)
    }

    /// A kept connection that is open as far as is known.
    fn kept(&self) -> Option<Connection> {
        let mut idle = self.idle.lock();
        std::iter::from_fn(|| idle.pop()).find(SendRequest::is_ready)
    }

    async fn connect(&self) -> Result<Connection, ClientError> {
        let stream = TcpStream::connect(&self.url.authority).await.map_err(connection_error)?;
        let _ = stream.set_nodelay(true);
        match &self.trust {
            Some(trust) => speak(trust.secure(self.url.host(), stream).await?).await,
            None => speak(stream).await,
        }
    }
}

/// HTTP over a stream of bytes.
async fn speak(
    stream: impl AsyncRead + AsyncWrite + Send + Unpin + 'static,
) -> Result<Connection, ClientError> {
    let (sender, connection) = handshake(TokioIo::new(stream)).await.map_err(connection_error)?;
    tokio::spawn(connection);
    Ok(sender)
}

async fn successful(response: Response<Incoming>) -> Result<Response<Incoming>, ClientError> {
    if response.status().is_success() {
        return Ok(response);
    }
    let status = response.status().as_u16();
    let message = read(response).await?.pointer("/error/message").map(Value::to_string);
    Err(ClientError::Status { status, message: message.unwrap_or_default() })
}

/// A whole body as JSON; null where it is none.
pub(crate) async fn read(response: Response<Incoming>) -> Result<Value, ClientError> {
    let bytes = response.into_body().collect().await.map_err(connection_error)?.to_bytes();
    Ok(serde_json::from_slice(&bytes).unwrap_or(Value::Null))
}

pub(crate) fn connection_error(error: impl std::error::Error) -> ClientError {
    ClientError::Connection(crate::error::with_causes(&error))
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::http::{CertificateFiles, tls};

    /// Reads the head of a request, and answers it.
    async fn answer(stream: &mut (impl AsyncRead + AsyncWrite + Unpin)) {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.expect("a request"));
        }
        stream.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n1").await.expect("taken");
    }

    #[tokio::test]
    async fn a_connection_that_was_closed_between_two_requests_is_replaced() {
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let url = format!("http://{}", listener.local_addr().expect("bound")).parse().expect("an address");
        let server = tokio::spawn(async move {
            let (mut first, _) = listener.accept().await.expect("a client");
            answer(&mut first).await;
            // It goes when the next request has come, without a word.
            first.read_u8().await.expect("a request");
            drop(first);
            answer(&mut listener.accept().await.expect("again").0).await;
        });
        let client = Client::new(url, None, None);
        for _ in 0..2 {
            let (response, connection) = client.send("GET", "/", Bytes::new()).await.expect("an answer");
            assert_eq!(read(response).await, Ok(Value::from(1)));
            client.keep(connection);
        }
        server.await.expect("all was asked");
    }

    #[tokio::test]
    async fn a_secured_server_is_believed_by_its_certificate() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = |name| folder.path().join(name);
        let files = CertificateFiles { certificates: file("cert.pem"), key: file("key.pem") };
        // As openssl makes them: an authority's, that signs for itself.
        let mut params = rcgen::CertificateParams::new(["localhost".to_owned()]).expect("a name");
        params.is_ca = rcgen::IsCa::Ca(rcgen::BasicConstraints::Unconstrained);
        let key = rcgen::KeyPair::generate().expect("made");
        std::fs::write(&files.certificates, params.self_signed(&key).expect("made").pem()).expect("written");
        std::fs::write(&files.key, key.serialize_pem()).expect("written");
        let (acceptor, _) = tls::acceptor(files.clone()).expect("both are good");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("bound").port();
        tokio::spawn(async move {
            loop {
                let (stream, _) = listener.accept().await.expect("a client");
                if let Ok(mut stream) = acceptor.accept(stream).await {
                    answer(&mut stream).await;
                }
            }
        });
        let url: Url = format!("https://localhost:{port}").parse().expect("an address");
        let trust = |path: Option<&Path>| Some(Trust::new(path).expect("certificates"));
        let client = Client::new(url.clone(), None, trust(Some(&files.certificates)));
        let (response, _) = client.send("GET", "/", Bytes::new()).await.expect("an answer");
        assert_eq!(read(response).await, Ok(Value::from(1)));
        let elsewhere = format!("https://127.0.0.1:{port}").parse().expect("an address");
        let other_name = Client::new(elsewhere, None, trust(Some(&files.certificates)));
        let error = other_name.send("GET", "/", Bytes::new()).await.expect_err("not its name").to_string();
        assert!(error.contains("not valid for name"), "{error}");
        let stranger = Client::new(url, None, trust(None));
        let error = stranger.send("GET", "/", Bytes::new()).await.expect_err("nobody knows it").to_string();
        assert!(error.contains("certificate"), "{error}");
        let error = Trust::new(Some(&files.key)).map(drop).expect_err("a key").to_string();
        assert!(error.contains("key.pem: holds no certificate"), "{error}");
    }
}
