//! Which server a command speaks with.

use std::path::PathBuf;

use clap::Args;

use super::{Client, Trust, Url};
use crate::error::Result;

/// The flags that say so.
#[derive(Args)]
pub(crate) struct Site {
    /// Where the server listens: http://HOST:PORT or https://HOST:PORT.
    #[arg(default_value = "http://127.0.0.1:8000")]
    pub(crate) url: Url,
    /// A key that the server asks for.
    #[arg(long, value_name = "KEY")]
    api_key: Option<String>,
    /// Certificates in PEM form that are trusted in place of the well-known authorities: one that signed the server's, or
    /// the server's own.
    #[arg(long, value_name = "FILE")]
    cacert: Option<PathBuf>,
}

impl Site {
    /// A client of it.
    ///
    /// # Errors
    ///
    /// Certificates that cannot be read.
    pub(crate) fn client(&self) -> Result<Client> {
        let trust = match self.url.is_secure || self.cacert.is_some() {
            true => Some(Trust::new(self.cacert.as_deref())?),
            false => None,
        };
        Ok(Client::new(self.url.clone(), self.api_key.clone(), trust))
    }
}
