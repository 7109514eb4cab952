//! Whose certificates are believed.

use std::path::Path;
use std::sync::Arc;

use rustls::client::WebPkiServerVerifier;
use rustls::crypto::ring;
use rustls::pki_types::ServerName;
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

use super::ClientError;
use super::client::connection_error;
use super::known_server::KnownServers;
use crate::http::{CertificateError, tls};

/// Secures connections to servers whose certificates lead to those that are trusted.
#[derive(Clone)]
pub(crate) struct Trust(TlsConnector);

impl std::fmt::Debug for Trust {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Trust").finish_non_exhaustive()
    }
}

impl Trust {
    /// Trusts the certificates of a file, or the well-known authorities.
    ///
    /// # Errors
    ///
    /// What is wrong with the file.
    pub(crate) fn new(cacert: Option<&Path>) -> Result<Self, CertificateError> {
        let (mut roots, mut known) = (RootCertStore::empty(), Vec::new());
        match cacert {
            Some(path) => {
                known = tls::certificates_of(path)?;
                let refuse = |reason: String| CertificateError { path: path.to_owned(), reason };
                for certificate in &known {
                    roots.add(certificate.clone()).map_err(|error| refuse(error.to_string()))?;
                }
            }
            None => roots.extend(webpki_roots::TLS_SERVER_ROOTS.iter().cloned()),
        }
        let provider = Arc::new(ring::default_provider());
        let authorities = WebPkiServerVerifier::builder_with_provider(Arc::new(roots), Arc::clone(&provider))
            .build()
            .expect("there is an authority");
        let config = ClientConfig::builder_with_provider(provider)
            .with_safe_default_protocol_versions()
            .expect("the provider has the default versions")
            .dangerous()
            .with_custom_certificate_verifier(Arc::new(KnownServers { known, authorities }))
            .with_no_client_auth();
        Ok(Self(TlsConnector::from(Arc::new(config))))
    }

    /// Secures a connection with the server of that name, or address.
    ///
    /// # Errors
    ///
    /// A name that no certificate can have; a handshake that fails.
    pub(crate) async fn secure(
        &self,
        host: &str,
        stream: TcpStream,
    ) -> Result<TlsStream<TcpStream>, ClientError> {
        let name = ServerName::try_from(host.to_owned()).map_err(connection_error)?;
        self.0.connect(name, stream).await.map_err(connection_error)
    }
}
