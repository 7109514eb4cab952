//! Looks as a server sends them.

use std::time::Duration;

use http_body_util::BodyExt;
use hyper::body::Bytes;
use tokio::sync::mpsc;

use super::look::Look;
use crate::cli::remote::{Client, ClientError, Events, connection_error};

/// After which a server that was lost is asked again.
const RETRY: Duration = Duration::from_secs(2);

/// A server sends a look a second: one that sends none for so long is lost.
const SILENCE: Duration = Duration::from_secs(10);

/// What there is to show.
#[derive(Clone, Debug)]
pub(super) enum News {
    Look(Box<Look>),
    /// Why no more looks come; they are asked for again.
    Lost(String),
}

/// Tells what the server does until nobody listens.
pub(super) async fn watch(client: Client, news: mpsc::Sender<News>) {
    while !news.is_closed() {
        // A screen that is behind leaves looks out.
        let told = looks(&client, |look| {
            let _ = news.try_send(News::Look(Box::new(look)));
            !news.is_closed()
        });
        if let Err(error) = told.await {
            let _ = news.send(News::Lost(error.to_string())).await;
            tokio::time::sleep(RETRY).await;
        }
    }
}

/// Hands on each look as long as `take` wants more.
///
/// # Errors
///
/// Why no more come.
pub(super) async fn looks(client: &Client, mut take: impl FnMut(Look) -> bool) -> Result<(), ClientError> {
    let silent = |_| ClientError::Stream(format!("nothing came for {} s", SILENCE.as_secs()));
    let asked = client.send("GET", "/live/events", Bytes::new());
    let (response, _connection) = tokio::time::timeout(SILENCE, asked).await.map_err(silent)??;
    let (mut events, mut body) = (Events::default(), response.into_body());
    let mut wants_more = true;
    while wants_more {
        let Some(frame) = tokio::time::timeout(SILENCE, body.frame()).await.map_err(silent)? else {
            return Err(ClientError::Stream("the server shuts down".to_owned()));
        };
        let frame = frame.map_err(connection_error)?;
        let Some(bytes) = frame.data_ref() else { continue };
        events.take(bytes, |event| {
            let look = serde_json::from_slice(event)
                .map_err(|error| ClientError::Stream(format!("/live/events is of another form: {error}")))?;
            wants_more = wants_more && take(look);
            Ok(())
        })?;
    }
    Ok(())
}
