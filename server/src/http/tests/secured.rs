use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::behind::leave_behind;
use super::connections::{Served, leave_with_bytes_behind};
use super::rig::Rig;
use crate::http::CertificateFiles;
use crate::http::tls;

/// A rig behind secured connections, and what makes them.
pub(super) struct Secured {
    pub(super) served: Served,
    connector: TlsConnector,
}

impl Secured {
    pub(super) async fn new() -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let generated = rcgen::generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        let files =
            CertificateFiles { certificates: folder.path().join("c.pem"), key: folder.path().join("k.pem") };
        std::fs::write(&files.certificates, generated.cert.pem()).expect("written");
        std::fs::write(&files.key, generated.signing_key.serialize_pem()).expect("written");
        let (tls, _) = tls::acceptor(files).expect("both files are good");
        let mut roots = rustls::RootCertStore::empty();
        roots.add(generated.cert.der().clone()).expect("a certificate");
        let config =
            rustls::ClientConfig::builder_with_provider(Arc::new(rustls::crypto::ring::default_provider()))
                .with_safe_default_protocol_versions()
                .expect("the provider has them")
                .with_root_certificates(roots)
                .with_no_client_auth();
        let served = Served::with_tls(Rig::new(), Some(tls)).await;
        Self { served, connector: TlsConnector::from(Arc::new(config)) }
    }

    pub(super) async fn connect(&self) -> TlsStream<TcpStream> {
        let name = rustls::pki_types::ServerName::try_from("localhost").expect("a name");
        self.connector.connect(name, self.served.connect().await).await.expect("a secure connection")
    }
}

#[tokio::test]
async fn connections_can_be_secured() {
    let secured = Secured::new().await;
    // A handshake that is torn, and one that is none.
    drop(secured.served.connect().await);
    secured.served.connect().await.write_all(b"GET / HTTP/1.1\r\n\r\n").await.expect("sent");
    let mut client = secured.connect().await;
    client
        .write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
        .await
        .expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).await.expect("answered");
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
}

#[tokio::test]
async fn br_41_a_client_that_leaves_a_secured_connection_takes_its_work_along() {
    let secured = Secured::new().await;
    let rig = &secured.served.rig;
    rig.control.set_delay(Duration::from_millis(10));
    for is_streamed in [true, false] {
        leave_with_bytes_behind(rig, secured.connect().await, is_streamed).await;
    }
    leave_behind(rig, secured.connect().await, &"x".repeat(1_000_000)).await;
    rig.control.set_delay(Duration::ZERO);
    rig.check_alive().await;
}
