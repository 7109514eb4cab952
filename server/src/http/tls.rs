//! TLS, with certificates that may be renewed while the server runs.

use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use parking_lot::RwLock;
use rustls::ServerConfig;
use rustls::crypto::ring;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::{ClientHello, ResolvesServerCert};
use rustls::sign::CertifiedKey;
use tokio_rustls::TlsAcceptor;

/// How often the files are looked at.
const RELOAD_PERIOD: Duration = Duration::from_secs(5);

/// Where a certificate and its key are.
#[derive(Clone, Debug)]
pub(crate) struct CertificateFiles {
    /// PEM: the server's certificate first, then those that lead to its issuer.
    pub(crate) certificates: PathBuf,
    /// PEM: PKCS 8, PKCS 1 or SEC 1.
    pub(crate) key: PathBuf,
}

/// Files that no connection can be secured with.
#[derive(Debug, thiserror::Error)]
#[error("{}: {reason}", path.display())]
pub struct CertificateError {
    /// The file.
    pub path: PathBuf,
    /// What is wrong with it.
    pub reason: String,
}

/// The certificate in force.
#[derive(Debug)]
struct Certificate {
    files: CertificateFiles,
    now: RwLock<Arc<CertifiedKey>>,
}

/// What secures connections.
///
/// # Errors
///
/// What is wrong with the files.
pub(crate) fn acceptor(files: CertificateFiles) -> Result<(TlsAcceptor, Reloader), CertificateError> {
    let now = RwLock::new(Arc::new(files.load()?));
    let reloader = Reloader { seen: files.stamps(), certificate: Arc::new(Certificate { files, now }) };
    let versions = ServerConfig::builder_with_provider(Arc::new(ring::default_provider()))
        .with_safe_default_protocol_versions()
        .expect("the provider has the default versions");
    let certificate: Arc<Certificate> = Arc::clone(&reloader.certificate);
    let mut config = versions.with_no_client_auth().with_cert_resolver(certificate);
    config.alpn_protocols = vec![b"http/1.1".to_vec()];
    Ok((TlsAcceptor::from(Arc::new(config)), reloader))
}

/// The certificates of a PEM file: at least one.
///
/// # Errors
///
/// A file that cannot be read, or holds none.
pub(crate) fn certificates_of(path: &Path) -> Result<Vec<CertificateDer<'static>>, CertificateError> {
    let refuse = |reason: String| CertificateError { path: path.to_owned(), reason };
    let certificates = CertificateDer::pem_file_iter(path)
        .and_then(Iterator::collect::<Result<Vec<_>, _>>)
        .map_err(|error| refuse(error.to_string()))?;
    match certificates.is_empty() {
        true => Err(refuse("holds no certificate in PEM form".to_owned())),
        false => Ok(certificates),
    }
}

impl CertificateFiles {
    fn load(&self) -> Result<CertifiedKey, CertificateError> {
        let refuse = |path: &Path, reason: String| CertificateError { path: path.to_owned(), reason };
        let certificates = certificates_of(&self.certificates)?;
        let key =
            PrivateKeyDer::from_pem_file(&self.key).map_err(|error| refuse(&self.key, error.to_string()))?;
        CertifiedKey::from_der(certificates, key, &ring::default_provider())
            .map_err(|error| refuse(&self.key, format!("does not go with the certificate: {error}")))
    }

    /// When the files were written, as far as the system says.
    fn stamps(&self) -> [Option<SystemTime>; 2] {
        let written = |path: &Path| -> io::Result<SystemTime> { std::fs::metadata(path)?.modified() };
        [written(&self.certificates).ok(), written(&self.key).ok()]
    }
}

impl ResolvesServerCert for Certificate {
    fn resolve(&self, _hello: ClientHello<'_>) -> Option<Arc<CertifiedKey>> {
        Some(Arc::clone(&self.now.read()))
    }
}

/// Takes over certificates that were written anew.
#[derive(Debug)]
pub(crate) struct Reloader {
    seen: [Option<SystemTime>; 2],
    certificate: Arc<Certificate>,
}

impl Reloader {
    /// Looks at the files every few seconds, for ever.
    pub(crate) async fn run(mut self) {
        loop {
            tokio::time::sleep(RELOAD_PERIOD).await;
            self.look();
        }
    }

    /// Takes over what has changed. Files that cannot be used leave the certificate in force as it is.
    fn look(&mut self) {
        let files = &self.certificate.files;
        let stamps = files.stamps();
        if stamps == self.seen {
            return;
        }
        match files.load() {
            Ok(loaded) => {
                self.seen = stamps;
                *self.certificate.now.write() = Arc::new(loaded);
                tracing::info!(target: "quire::server", "{} was loaded anew", files.certificates.display());
            }
            // The other of the two may still be written.
            Err(error) => tracing::warn!(target: "quire::server", "the old certificate stays: {error}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use rcgen::{CertifiedKey as Generated, generate_simple_self_signed};

    use super::*;

    fn write(files: &CertificateFiles) -> Vec<u8> {
        let Generated { cert, signing_key } =
            generate_simple_self_signed(["localhost".to_owned()]).expect("made");
        fs::write(&files.certificates, cert.pem()).expect("written");
        fs::write(&files.key, signing_key.serialize_pem()).expect("written");
        cert.der().to_vec()
    }

    fn in_force(reloader: &Reloader) -> Vec<u8> {
        reloader.certificate.now.read().cert[0].to_vec()
    }

    #[test]
    fn a_renewed_certificate_is_taken_over_and_a_broken_one_is_not() {
        let folder = tempfile::tempdir().expect("a folder");
        let files =
            CertificateFiles { certificates: folder.path().join("c.pem"), key: folder.path().join("k.pem") };
        assert!(acceptor(files.clone()).is_err(), "there is nothing");
        let first = write(&files);
        let (_, mut reloader) = acceptor(files.clone()).expect("both files are good");
        assert_eq!(in_force(&reloader), first);
        let second = write(&files);
        reloader.seen = [None, None];
        reloader.look();
        assert_eq!(in_force(&reloader), second);
        fs::write(&files.key, "no key").expect("written");
        reloader.seen = [None, None];
        reloader.look();
        assert_eq!(in_force(&reloader), second);
        let other = write(&CertificateFiles {
            certificates: folder.path().join("other.pem"),
            key: files.key.clone(),
        });
        assert_ne!(other, second);
        let error = acceptor(files).map(drop).expect_err("a key of another certificate");
        assert!(error.to_string().contains("does not go with the certificate"), "{error}");
    }
}
