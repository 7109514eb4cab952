//! One file on its way into a `.part` file, which a broken transfer leaves for the next one.

use std::fs::{File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::path::Path;

use ureq::Body;
use ureq::http::Response;

use super::client::{Ask, Client};
use super::progress::TransferBar;
use super::{AnswerFault, SourceError};

/// Where a transfer begins, and how long the file is where the hub says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Span {
    start: u64,
    total: Option<u64>,
}

/// Fetches what is missing of a file that is `announced` bytes long, where that is known.
///
/// A hub, or a mirror, that does not send parts of files sends the whole: then what was there goes.
pub(super) fn fetch(
    client: &Client,
    ask: Ask<'_>,
    announced: Option<u64>,
    part: &Path,
) -> Result<(), SourceError> {
    let open = OpenOptions::new().write(true).create(true).truncate(false).open(part);
    let mut file = open.map_err(SourceError::io(part))?;
    let there = file.metadata().map_err(SourceError::io(part))?.len();
    if Some(there) == announced {
        return Ok(());
    }
    let start = if announced.is_some_and(|announced| there > announced) { 0 } else { there };
    let range = format!("bytes={start}-");
    let range = (start > 0).then_some(range.as_str());
    let response = client.get(Ask { range, head_only: false, ..ask })?.response;
    let Some(span) = span_of(&response, start) else {
        // Another attempt begins with nothing.
        file.set_len(0).map_err(SourceError::io(part))?;
        return Err(client.wrong(ask.what, AnswerFault::Range { start }));
    };
    check_length(client, ask.what, span.total, announced)?;
    file.set_len(span.start).map_err(SourceError::io(part))?;
    file.seek(SeekFrom::Start(span.start)).map_err(SourceError::io(part))?;
    receive(client, ask.what, response, span, (&mut file, part))
}

fn receive(
    client: &Client,
    what: &str,
    response: Response<Body>,
    span: Span,
    (file, part): (&mut File, &Path),
) -> Result<(), SourceError> {
    let bar = TransferBar::new(span.total.unwrap_or(0), what);
    bar.advance(span.start);
    let mut body = client.body(response);
    let mut piece = vec![0; 1 << 18];
    let mut num_bytes = span.start;
    loop {
        let len = match body.read(&mut piece) {
            Ok(0) => return check_length(client, what, Some(num_bytes), span.total),
            Ok(len) => len,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
            Err(error) => return Err(client.broke_off(what, &error)),
        };
        num_bytes += len as u64;
        if span.total.is_some_and(|total| num_bytes > total) {
            return check_length(client, what, Some(num_bytes), span.total);
        }
        file.write_all(&piece[..len]).map_err(SourceError::io(part))?;
        bar.advance(len as u64);
    }
}

/// What of the file an answer to `bytes=start-` brings; none where it is something else.
fn span_of(response: &Response<Body>, start: u64) -> Option<Span> {
    let header = |name| response.headers().get(name).and_then(|value| value.to_str().ok());
    match response.status().as_u16() {
        200 => Some(Span { start: 0, total: header("content-length").and_then(|len| len.parse().ok()) }),
        206 => content_range(header("content-range")?).filter(|span| span.start == start),
        _ => None,
    }
}

/// `bytes FIRST-LAST/TOTAL`, the total of which may be a star.
fn content_range(text: &str) -> Option<Span> {
    let (range, total) = text.strip_prefix("bytes ")?.split_once('/')?;
    let (first, _) = range.split_once('-')?;
    let total = if total == "*" { None } else { Some(total.parse().ok()?) };
    Some(Span { start: first.parse().ok()?, total })
}

fn check_length(
    client: &Client,
    what: &str,
    given: Option<u64>,
    announced: Option<u64>,
) -> Result<(), SourceError> {
    match (given, announced) {
        (Some(given), Some(announced)) if given != announced => {
            Err(client.failed(what, format!("{given} bytes came, {announced} were announced")))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ranges_are_read() {
        for (text, expected) in [
            ("bytes 5-9/10", Some((5, Some(10)))),
            ("bytes 0-0/*", Some((0, None))),
            ("bytes */10", None),
            ("bytes 5-9", None),
            ("5-9/10", None),
            ("bytes -9/10", None),
            ("bytes 5-9/ten", None),
        ] {
            let expected = expected.map(|(start, total)| Span { start, total });
            assert_eq!(content_range(text), expected, "{text}");
        }
    }
}
