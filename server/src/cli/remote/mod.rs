//! Servers as this command's clients see them: plain HTTP, connections that are kept, server-sent events.

mod client;
mod events;
mod url;

pub(crate) use client::{Client, ClientError, connection_error, read};
pub(crate) use events::Events;
pub(crate) use url::Url;
