//! Results on standard output.

use std::io::{self, Write};

use clap::ValueEnum;
use quire_engine::{FinishReason, RequestMetrics, RequestOutput, StopReason, TokenLogprobs};
use serde::Serialize;

use crate::error::{Error, Result};

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
    index: usize,
    prompt_token_ids: &'a [u32],
    token_ids: &'a [u32],
    text: &'a str,
    finish_reason: FinishReason,
    stop_reason: Option<&'a StopReason>,
    logprobs: Option<&'a [TokenLogprobs]>,
    #[serde(skip_serializing_if = "Option::is_none")]
    prompt_logprobs: Option<&'a [Option<TokenLogprobs>]>,
    num_cached_tokens: u32,
    metrics: &'a RequestMetrics,
}

/// The line of a request that failed.
#[derive(Serialize)]
struct FailureLine<'a> {
    index: usize,
    error: &'a str,
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
            index: index * request.outputs.len() + output.index as usize,
            prompt_token_ids: &request.prompt_token_ids,
            token_ids: &output.token_ids,
            text: &output.text,
            finish_reason: output.finish_reason,
            stop_reason: output.stop_reason.as_ref(),
            logprobs: output.logprobs.as_deref(),
            prompt_logprobs: request.prompt_logprobs.as_deref(),
            num_cached_tokens: request.num_cached_tokens,
            metrics: &request.metrics,
        };
        write_line(to, &line)
    })
}

/// Writes a JSON object and ends the line, so that a reader of a pipe has it at once.
pub(crate) fn write_line(to: &mut impl Write, line: &impl Serialize) -> Result<()> {
    let line = serde_json::to_string(line).map_err(|error| Error::Stdout(io::Error::other(error)))?;
    writeln!(to, "{line}").and_then(|()| to.flush()).map_err(Error::Stdout)
}
