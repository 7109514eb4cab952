//! `quire trace record`: a trace's requests on a model.

use std::io::{self, Write};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use clap::Args;
use quire_engine::{Llm, Prompt, Request, RequestEvent, SamplingParams};
use quire_scheduler::Time;
use quire_scheduler::record::Recording;
use quire_scheduler::trace::{Room, Trace, TraceRequest};

use super::Context;
use super::load::{check_output, in_recording, write_file};
use super::model::ModelArgs;
use super::simulate::{ArrivalArgs, LoadArgs};
use crate::error::{Error, Result};
use crate::{signal, start};

/// Prompts are made-up tokens, alike where the trace says that they share a prefix. Tenants, priorities and max_tokens are
/// those of the trace. Requests that all come at once are queued before the first step, so that the run is the same every
/// time; others are handed in when their time has come. Outputs that do not fit are told. A Ctrl-C ends the run: what was
/// recorded until then is written.
#[derive(Args)]
pub(crate) struct RecordArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    load: LoadArgs,
    #[command(flatten)]
    arrivals: ArrivalArgs,
    /// Where the recording goes.
    #[arg(long, short, value_name = "FILE")]
    output: PathBuf,
}

/// The made-up ids lie below this, and below the size of the vocabulary.
const MAX_TOKEN_ID: usize = 150_000;

pub(super) fn record(context: &Context<'_>, args: &RecordArgs) -> Result<()> {
    // A wrong trace is told before a model is loaded.
    let trace = args.load.read()?;
    let arrivals = args.arrivals.times(&args.load, &trace)?;
    check_output(&args.output, paths(args)?.iter().map(PathBuf::as_path))?;
    args.model.check_trace_tensors(&[args.load.trace.as_path()])?;
    let (options, parts) = args.model.resolve(context, None)?;
    let llm = start::llm(options, &parts)?;
    let recorder = llm.flight_recorder();
    check_room(args, &trace, &recorder.recording())?;
    let ids = MAX_TOKEN_ID.min(llm.model().vocab_size);
    let requests: Vec<_> = (0..trace.requests.len()).map(|index| request(&trace, index, ids)).collect();
    let started = Instant::now();
    let ended = until_interrupted(move || run(&llm, requests, &arrivals))?;
    let elapsed_s = started.elapsed().as_secs_f64();
    let recording = recorder.recording();
    write_file(&args.output, &recording.to_bytes())?;
    let summary = recording.summary().map_err(|error| in_recording(&args.output, error))?;
    writeln!(io::stdout(), "{summary}elapsed     {elapsed_s:.3} s").map_err(Error::Stdout)?;
    let failed = |(request, source)| Error::TraceRequest {
        path: args.load.trace.clone(),
        request,
        source: Box::new(source),
    };
    match ended {
        Some(ran) => ran.map_err(failed),
        None => Err(Error::Interrupted { path: args.output.clone() }),
    }
}

/// What is read: the trace, the model, what settings name.
fn paths(args: &RecordArgs) -> Result<Vec<PathBuf>> {
    let mut paths = args.model.paths()?;
    paths.push(args.load.trace.clone());
    Ok(paths)
}

/// Refuses what could never run, and tells what will be cut short, by the limits of the engine that is about to run it.
fn check_room(args: &RecordArgs, trace: &Trace, engine: &Recording) -> Result<()> {
    let room = Room::new(engine.scheduler_config(), &engine.cache_config());
    for (request, of) in trace.requests.iter().enumerate() {
        let path = || args.load.trace.clone();
        room.check(of.prompt_tokens).map_err(|source| Error::NeverRuns { path: path(), request, source })?;
    }
    trace.cuts(&room).iter().for_each(|cut| eprintln!("cut short: {cut}"));
    Ok(())
}

/// What a run came to; `None` if somebody interrupted it, who does not wait for it.
fn until_interrupted<T: Send + 'static>(run: impl FnOnce() -> T + Send + 'static) -> Result<Option<T>> {
    let (ended, end) = mpsc::channel();
    let interrupted = ended.clone();
    signal::at_interrupt(move || drop(interrupted.send(None)));
    // A panic has been told; what was recorded until then is written as well.
    let run = move || drop(ended.send(catch_unwind(AssertUnwindSafe(run)).ok()));
    thread::Builder::new().name("quire-record".to_owned()).spawn(run).map_err(Error::Runtime)?;
    Ok(end.recv().unwrap_or(None))
}

/// Which request failed, and why.
type Failed = (usize, quire_engine::Error);

fn run(llm: &Llm, requests: Vec<Request>, arrivals: &[Time]) -> Result<(), Failed> {
    match arrivals.iter().all(|arrival| *arrival == Time::ZERO) {
        true => {
            let mut results = llm.generate_each(requests).into_iter().enumerate();
            results.try_for_each(|(place, result)| result.map(drop).map_err(|error| (place, error)))
        }
        false => run_at(llm, requests, arrivals),
    }
}

/// Tokens are equal where the trace says so; else they differ from request to request and from place to place.
fn request(trace: &Trace, index: usize, ids: usize) -> Request {
    let of = &trace.requests[index];
    let token = |position: u32| {
        let owner = of.token(index, position) as usize;
        ((owner * 7919 + position as usize * 104_729) % ids) as u32
    };
    let prompt = Prompt::TokenIds((0..of.prompt_tokens).map(token).collect());
    Request {
        tenant: trace.tenant_name(of).map(str::to_owned),
        priority: of.priority,
        ..Request::new(prompt, params(of))
    }
}

/// A request that gives a higher limit than it generates ends by itself: at a token that is banned before, and made the
/// likeliest then.
fn params(of: &TraceRequest) -> SamplingParams {
    let max_tokens = of.max_tokens.unwrap_or(of.output_tokens);
    let usual =
        SamplingParams { ignore_eos: true, max_tokens: Some(max_tokens.into()), ..SamplingParams::greedy(1) };
    if max_tokens == of.output_tokens {
        return usual;
    }
    SamplingParams {
        stop_token_ids: vec![END],
        min_tokens: u64::from(of.output_tokens) - 1,
        logit_bias: [(END, 100.0)].into(),
        ..usual
    }
}

/// The token at which outputs end.
const END: u32 = 0;

/// Hands requests in as they come.
fn run_at(llm: &Llm, requests: Vec<Request>, arrivals: &[Time]) -> Result<(), Failed> {
    let started = Instant::now();
    let mut streams = Vec::with_capacity(requests.len());
    for (place, (request, arrival)) in requests.into_iter().zip(arrivals).enumerate() {
        let at = started + Duration::from_nanos(arrival.as_nanos());
        thread::sleep(at.saturating_duration_since(Instant::now()));
        streams.push(llm.stream(request).map_err(|error| (place, error))?);
    }
    for (place, mut stream) in streams.into_iter().enumerate() {
        while let Some(event) = stream.blocking_next() {
            if let RequestEvent::Failed(error) = event {
                return Err((place, error));
            }
        }
    }
    Ok(())
}
