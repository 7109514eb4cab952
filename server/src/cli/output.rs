//! Results on standard output.

use std::io::{self, Write};
use std::os::fd::AsFd;
use std::time::Duration;

use clap::ValueEnum;
use quire_engine::{FinishReason, RequestMetrics, RequestOutput, StopReason, TokenLogprobs};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

use crate::error::{Error, Result};

/// How often a wait looks whether anybody still reads: seldom enough to cost nothing, often enough to seem at once.
const LOOKS_AFTER_READER: Duration = Duration::from_millis(200);

/// How results are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum OutputFormat {
    /// The text alone.
    Text,
    /// A JSON object a line.
    Json,
}

/// The line of an output. The fields and their order are an interface: programs read them.
#[derive(Serialize)]
struct OutputLine<'a> {
    /// Which request it is of, from 0.
    index: usize,
    /// Which of that request's outputs it is, from 0.
    output_index: u32,
    prompt_token_ids: &'a [u32],
    token_ids: &'a [u32],
    text: &'a str,
    finish_reason: FinishReason,
    stop_reason: Option<&'a StopReason>,
    logprobs: Option<&'a [TokenLogprobs]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<&'a [Option<TokenLogprobs>]>,
    num_cached_tokens: u32,
    metrics: RequestMetrics,
}

/// The line of a request that failed.
#[derive(Serialize)]
struct FailureLine<'a> {
    index: usize,
    error: &'a str,
}

/// Writes a line of a report for people.
pub(super) fn write_field(to: &mut std::fmt::Formatter<'_>, name: &str, value: &str) -> std::fmt::Result {
    writeln!(to, "{name:<14}{value}")
}

/// Writes what came of the request `index`.
pub(crate) fn write(
    to: &mut impl Write,
    format: OutputFormat,
    index: usize,
    outcome: &Result<RequestOutput, String>,
) -> Result<()> {
    match (format, outcome) {
        (OutputFormat::Text, Ok(output)) => output
            .outputs
            .iter()
            .try_for_each(|output| writeln!(to, "{}", output.text))
            .map_err(Error::Stdout),
        // Told on standard error; an empty line keeps the lines of the output in step with the requests.
        (OutputFormat::Text, Err(_)) => writeln!(to).map_err(Error::Stdout),
        (OutputFormat::Json, Ok(output)) => write_outputs(to, index, output),
        (OutputFormat::Json, Err(error)) => write_line(to, &FailureLine { index, error }),
    }
}

fn write_outputs(to: &mut impl Write, index: usize, request: &RequestOutput) -> Result<()> {
    request.outputs.iter().try_for_each(|output| {
        let line = OutputLine {
            index,
            output_index: output.index,
            prompt_token_ids: &request.prompt_token_ids,
            token_ids: &output.token_ids,
            text: &output.text,
            finish_reason: output.finish_reason,
            stop_reason: output.stop_reason.as_ref(),
            logprobs: output.logprobs.as_deref(),
            prompt_logprobs: request.prompt_logprobs.as_deref(),
            num_cached_tokens: request.num_cached_tokens,
            metrics: rounded(&request.metrics),
        };
        write_line(to, &line)
    })
}

/// Microseconds are as fine as clocks are right.
fn rounded(metrics: &RequestMetrics) -> RequestMetrics {
    let round = |ms: f64| (ms * 1e3).round() / 1e3;
    RequestMetrics {
        queue_ms: round(metrics.queue_ms),
        ttft_ms: metrics.ttft_ms.map(round),
        tpot_ms: metrics.tpot_ms.map(round),
        e2e_ms: round(metrics.e2e_ms),
        num_preemptions: metrics.num_preemptions,
    }
}

/// What `result` comes to, unless whoever reads standard output goes away first: then a broken pipe, as the next write
/// would have it. What is long in computing is not computed for nobody.
pub(crate) async fn unless_closed<T>(result: impl Future<Output = T>) -> Result<T> {
    tokio::select! {
        biased;
        result = result => Ok(result),
        () = closed() => Err(Error::Stdout(io::ErrorKind::BrokenPipe.into())),
    }
}

/// Returns when nobody can read standard output any more.
async fn closed() {
    loop {
        tokio::time::sleep(LOOKS_AFTER_READER).await;
        if is_closed(io::stdout()) {
            return;
        }
    }
}

/// Whether the other end of a pipe or socket is gone. Files and devices have none.
fn is_closed(file: impl AsFd) -> bool {
    // Asks for no event: an error or a hang-up is told unasked.
    let mut polled = [PollFd::new(&file, PollFlags::empty())];
    let has_news = poll(&mut polled, Some(&Timespec::default())).is_ok_and(|num_ready| num_ready > 0);
    has_news && polled[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Writes a JSON object and ends the line, so that a reader of a pipe has it at once.
pub(crate) fn write_line(to: &mut impl Write, line: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(line).map_err(|error| Error::Stdout(io::Error::other(error)))?;
    writeln!(to, "{line}").and_then(|()| to.flush()).map_err(Error::Stdout)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pipe_is_closed_when_its_reader_is_gone() {
        let (reader, writer) = io::pipe().expect("a pipe");
        assert!(!is_closed(&writer));
        drop(reader);
        assert!(is_closed(&writer));
        assert!(!is_closed(tempfile::tempfile().expect("a file for tests")), "a file has no reader");
    }

    #[test]
    fn times_have_three_decimals() {
        let metrics = RequestMetrics { queue_ms: 1.23456, ttft_ms: Some(0.00049), ..Default::default() };
        let metrics = rounded(&metrics);
        assert_eq!((metrics.queue_ms, metrics.ttft_ms, metrics.tpot_ms), (1.235, Some(0.0), None));
    }
}
