//! `quire bench serve`: a load on any server with OpenAI's API.

mod client;
mod cpu;
mod plot;
mod report;

use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Args;
use hyper::body::Bytes;
use indicatif::ProgressBar;
use quire_scheduler::Time;
use quire_scheduler::trace::Trace;
use serde_json::json;
use tokio::sync::Semaphore;

use self::report::{Bounds, Measured};
use super::limits::{MAX_LEN, MAX_REQUESTS, up_to};
use crate::cli::load::{arrival_times, check_output, positive, read_trace};
use crate::cli::model::runtime;
use crate::cli::picture::Picture;
use crate::cli::remote::{Client, ClientError, Site};
use crate::error::{Error, Result};

#[derive(Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    site: Site,
    /// The model's name; by default the first that the server has.
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Lengths and arrivals of the requests: JSON lines or CSV, as of `quire simulate`.
    #[arg(long, value_name = "FILE", conflicts_with_all = ["input_len", "output_len"])]
    trace: Option<PathBuf>,
    /// The first so many requests of the trace, or so many alike.
    #[arg(long, value_name = "N", value_parser = up_to(MAX_REQUESTS))]
    num_prompts: Option<usize>,
    /// Tokens of each prompt.
    #[arg(long, value_name = "N", default_value_t = 512, value_parser = up_to(MAX_LEN))]
    input_len: usize,
    /// Tokens generated after it.
    #[arg(long, value_name = "N", default_value_t = 128, value_parser = up_to(MAX_LEN))]
    output_len: usize,
    /// Requests a second, in the mean. Without it: as the trace says, or all at once.
    #[arg(long, value_name = "R", value_parser = positive)]
    request_rate: Option<f64>,
    /// Without a trace: requests come at equal distances, in place of at random (Poisson).
    #[arg(long, requires = "request_rate")]
    fixed_rate: bool,
    /// Most requests at once: one that comes meanwhile is sent when another has been answered.
    #[arg(long, value_name = "N", value_parser = up_to(MAX_REQUESTS))]
    max_concurrency: Option<usize>,
    /// Seed of random arrivals.
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// Requests before the load that do not count, all at once.
    #[arg(long, value_name = "N", default_value_t = 8)]
    num_warmups: usize,
    /// Token ids of prompts lie below this.
    #[arg(long, value_name = "N", default_value_t = 32_000, value_parser = up_to(1 << 24))]
    vocab_size: usize,
    /// Milliseconds to the first piece within which an answer is a good one.
    #[arg(long, value_name = "MS", default_value_t = 500.0, value_parser = positive)]
    max_ttft_ms: f64,
    /// Milliseconds a token within which it is.
    #[arg(long, value_name = "MS", default_value_t = 30.0, value_parser = positive)]
    max_tpot_ms: f64,
    /// The server's process on this machine, to tell its processor time.
    #[arg(long, value_name = "PID")]
    server_pid: Option<u32>,
    /// Draws how many answers had which times.
    #[arg(long, value_name = "FILE.svg|png", value_parser = Picture::parse)]
    plot: Option<Picture>,
}

/// One request of the load.
struct Planned {
    at: Duration,
    num_prompt_tokens: usize,
    body: Bytes,
}

pub(super) fn run(args: &ServeArgs) -> Result<()> {
    args.plot.as_ref().map_or(Ok(()), |plot| check_output(plot.path(), args.trace.as_deref()))?;
    let lengths = args.lengths()?;
    let client = Arc::new(args.site.client()?);
    runtime()?.block_on(async {
        let places = Arc::new(Semaphore::new(args.max_concurrency.unwrap_or(Semaphore::MAX_PERMITS)));
        let failed = |error: ClientError| Error::Server { reason: error.to_string() };
        let model = match &args.model {
            Some(model) => model.clone(),
            None => client::model(&client).await.map_err(failed)?,
        };
        let planned = args.planned(&lengths, &model);
        let warmups = planned.iter().cycle().take(args.num_warmups.min(planned.len()));
        let warmups: Vec<_> =
            warmups.map(|one| Planned { at: Duration::ZERO, body: one.body.clone(), ..*one }).collect();
        measure(&client, &places, warmups, None).await.map_err(failed)?;
        let measured = measure(&client, &places, planned, args.server_pid).await.map_err(failed)?;
        let bounds = Bounds { max_ttft_ms: args.max_ttft_ms, max_tpot_ms: args.max_tpot_ms };
        let report = measured.report(&model, args.request_rate, bounds);
        let line = serde_json::to_string(&report).map_err(|error| Error::Stdout(error.into()))?;
        writeln!(io::stdout(), "{line}").map_err(Error::Stdout)?;
        let title = || format!("{model}, {} requests", measured.answers.len());
        args.plot.as_ref().map_or(Ok(()), |picture| picture.write(&plot::svg(&measured, title())))
    })
}

impl ServeArgs {
    /// When each request comes, and how long it is.
    fn lengths(&self) -> Result<Vec<(Duration, usize, usize)>> {
        let Some(path) = &self.trace else {
            let num = self.num_prompts.unwrap_or(64);
            let arrivals = self.arrivals(num);
            return Ok(arrivals.into_iter().map(|at| (at, self.input_len, self.output_len)).collect());
        };
        let trace: Trace = read_trace(path)?;
        let named = |source| Error::LoadTrace { path: path.clone(), source };
        let times = arrival_times(&trace, self.request_rate, self.seed).map_err(named)?;
        let of_trace = times.iter().zip(&trace.requests).map(|(at, request)| {
            let at = at.since(Time::ZERO);
            (at, request.prompt_tokens as usize, request.output_tokens as usize)
        });
        Ok(of_trace.take(self.num_prompts.unwrap_or(usize::MAX)).collect())
    }

    fn arrivals(&self, num: usize) -> Vec<Duration> {
        let Some(rate) = self.request_rate else { return vec![Duration::ZERO; num] };
        let mut random = SplitMix(self.seed);
        let mut at = 0.0;
        let next = |_| {
            let now = at;
            at += if self.fixed_rate { 1.0 } else { -(1.0 - random.unit()).ln() } / rate;
            Duration::try_from_secs_f64(now).unwrap_or(Duration::MAX)
        };
        (0..num).map(next).collect()
    }

    /// Prompts are made-up tokens, the same in every run: see [`Workload`](super::workload::Workload).
    fn planned(&self, lengths: &[(Duration, usize, usize)], model: &str) -> Vec<Planned> {
        let of = |(k, &(at, num_prompt_tokens, output_tokens)): (usize, &(Duration, usize, usize))| {
            let prompt: Vec<_> =
                (0..num_prompt_tokens).map(|j| (k * 7919 + j * 104_729) % self.vocab_size).collect();
            let body = json!({
                "model": model, "prompt": prompt, "max_tokens": output_tokens, "ignore_eos": true, "temperature": 0,
                "stream": true, "stream_options": {"include_usage": true},
            });
            Planned { at, num_prompt_tokens, body: Bytes::from(body.to_string()) }
        };
        lengths.iter().enumerate().map(of).collect()
    }
}

/// Sends all requests at their times, whatever has been answered (an open loop) as long as there are places, and waits for
/// the answers.
async fn measure(
    client: &Arc<Client>,
    places: &Arc<Semaphore>,
    planned: Vec<Planned>,
    server_pid: Option<u32>,
) -> std::result::Result<Measured, ClientError> {
    let bar = ProgressBar::new(planned.len() as u64);
    let cpu_before = server_pid.and_then(cpu::cpu_time);
    let started = Instant::now();
    let mut measured = Measured::default();
    let mut open = Vec::with_capacity(planned.len());
    for request in planned {
        tokio::time::sleep_until((started + request.at).into()).await;
        measured.max_late = measured.max_late.max(started.elapsed().saturating_sub(request.at));
        measured.prompt_tokens += request.num_prompt_tokens as u64;
        let (client, places, bar) = (Arc::clone(client), Arc::clone(places), bar.clone());
        open.push(tokio::spawn(async move {
            let _place = places.acquire_owned().await.expect("nobody closes it");
            let answer = client::complete(&client, request.body).await;
            bar.inc(1);
            answer
        }));
    }
    let mut first_error = None;
    for answer in open {
        match answer.await.unwrap_or_else(|error| Err(ClientError::Connection(error.to_string()))) {
            Ok(answer) => measured.answers.push(answer),
            Err(error) => {
                measured.num_failed += 1;
                first_error.get_or_insert(error);
            }
        }
    }
    bar.finish_and_clear();
    measured.elapsed = started.elapsed();
    let cpu_after = server_pid.and_then(cpu::cpu_time);
    measured.server_cpu = cpu_after.zip(cpu_before).map(|(after, before)| after.saturating_sub(before));
    match first_error {
        // A load without an answer is no result.
        Some(error) if measured.answers.is_empty() => Err(error),
        Some(error) => {
            tracing::warn!(target: "quire::server", "{} requests failed, the first: {error}", measured.num_failed);
            Ok(measured)
        }
        None => Ok(measured),
    }
}

/// SplitMix64 (Steele, Lea and Flood, 2014).
struct SplitMix(u64);

impl SplitMix {
    /// In 0 to 1, 1 left out.
    fn unit(&mut self) -> f64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        ((z ^ (z >> 31)) >> 11) as f64 / (1_u64 << 53) as f64
    }
}
