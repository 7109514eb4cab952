//! Servers as this command's clients see them: HTTP, plain or secured, connections that are kept, server-sent events.

mod client;
mod events;
mod known_server;
mod site;
mod trust;
mod url;

pub(crate) use client::{Client, ClientError, connection_error, read};
pub(crate) use events::Events;
pub(crate) use site::Site;
pub(crate) use trust::Trust;
pub(crate) use url::Url;
