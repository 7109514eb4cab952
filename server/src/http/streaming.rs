//! Whether and how an answer is streamed.

use super::body::Body;
use super::error::ApiError;

/// How a stream is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Streaming {
    /// An event with the usage of the whole request comes last.
    pub(crate) include_usage: bool,
    /// Each event has the usage so far.
    pub(crate) continuous_usage: bool,
}

/// Takes `stream` and `stream_options` out of a body; none where the answer comes in one piece.
pub(crate) fn take(body: &mut Body, includes_usage: bool) -> Result<Option<Streaming>, ApiError> {
    let is_streamed = body.take_bool("stream")?.unwrap_or(false);
    let options = body.take_value("stream_options");
    if !is_streamed {
        let refuse =
            |_| ApiError::bad_field("stream_options", "stream_options: expected stream = true with it");
        return options.map_or(Ok(None), |options| Err(refuse(options)));
    }
    let has_options = options.is_some();
    let mut options = match options {
        None => Body::default(),
        Some(options) => Body::parse(options.to_string().as_bytes()).map_err(|_| {
            ApiError::bad_field("stream_options", format!("stream_options is {options}: expected an object"))
        })?,
    };
    let named = |error: ApiError| ApiError { param: Some("stream_options".to_owned()), ..error };
    let include_usage = options.take_bool("include_usage").map_err(named)?;
    let continuous_usage = options.take_bool("continuous_usage_stats").map_err(named)?.unwrap_or(false);
    let include_usage = include_usage.unwrap_or(has_options && includes_usage);
    body.leave_within("stream_options", options.rest());
    Ok(Some(Streaming { include_usage, continuous_usage: include_usage && continuous_usage }))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(json: &str, includes_usage: bool) -> Result<Option<Streaming>, ApiError> {
        take(&mut Body::parse(json.as_bytes()).expect("an object"), includes_usage)
    }

    #[test]
    fn empty_options_mean_usage_only_where_old_clients_are_served() {
        let usage = |json, old| of(json, old).expect("right").map(|streaming| streaming.include_usage);
        let empty = r#"{"stream": true, "stream_options": {}}"#;
        assert_eq!((usage(empty, false), usage(empty, true)), (Some(false), Some(true)));
        let none = r#"{"stream": true}"#;
        assert_eq!((usage(none, false), usage(none, true)), (Some(false), Some(false)));
        assert_eq!(usage("{}", true), None);
        assert_eq!(
            usage(r#"{"stream": true, "stream_options": {"include_usage": true}}"#, false),
            Some(true)
        );
    }

    #[test]
    fn options_without_a_stream_are_refused() {
        for json in [
            r#"{"stream_options": {}}"#,
            r#"{"stream": true, "stream_options": 1}"#,
            r#"{"stream": true, "stream_options": {"include_usage": "yes"}}"#,
        ] {
            assert_eq!(of(json, false).expect_err(json).param.as_deref(), Some("stream_options"));
        }
    }
}
