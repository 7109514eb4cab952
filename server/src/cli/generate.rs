//! `quire generate`.

use std::collections::VecDeque;
use std::fs::File;
use std::io::{self, BufRead, BufReader, Write};
use std::path::{Path, PathBuf};

use clap::{ArgGroup, Args};
use indicatif::{ProgressBar, ProgressStyle};
use quire_engine::{
    EngineClient, OutputKind, ParamLimits, Request, RequestEvent, RequestOutput, RequestStream,
    SamplingParams,
};

use super::Context;
use super::beams::BeamFlags;
use super::input::{self, Input, InputError, InputLine, LineError};
use super::model::ModelArgs;
use super::output::{self, OutputFormat};
use super::sampling::SamplingFlags;
use crate::error::{Error, Result, with_causes};

/// Requests of a file that are with the engine at once. More than run at once, so that it never waits for the next;
/// bounded, so that a file of any length takes little memory.
const MAX_OPEN: usize = 1024;

#[derive(Args)]
#[command(group = ArgGroup::new("what").args(["prompt", "input"]).required(true))]
pub(crate) struct GenerateArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// The text to continue.
    #[arg(long, value_name = "TEXT")]
    prompt: Option<String>,
    /// Requests, a JSON object a line, with `prompt`, `prompt_token_ids` or `messages` and any sampling parameter; `-` is
    /// standard input.
    #[arg(long, value_name = "FILE")]
    input: Option<PathBuf>,
    /// text (as it comes, the form for --prompt) or json (a line an output, the form for --input).
    #[arg(long, value_name = "FORMAT")]
    output_format: Option<OutputFormat>,
    #[command(flatten)]
    sampling: SamplingFlags,
    /// Outputs of a prompt, each with random numbers of its own; more than 1 need a temperature.
    #[arg(short, long, value_name = "N", default_value_t = 1, help_heading = "Sampling")]
    n: u32,
    #[command(flatten)]
    beams: BeamFlags,
}

pub(crate) fn run(context: &Context<'_>, args: &GenerateArgs) -> Result<()> {
    // What is wrong with the input is told before a model is fetched or loaded.
    let read = args.input.as_deref();
    args.model.check_trace_tensors(read.as_slice())?;
    let limits = args.model.known_limits(context)?;
    let with_n = |params: SamplingParams| SamplingParams { n: args.n, ..params };
    let defaults = args.sampling.checked_over(&with_n(SamplingParams::default()), &limits)?;
    if let Some(search) = args.beams.search(&args.sampling, &SamplingParams::default())? {
        search.check(&limits).map_err(quire_engine::Error::from)?;
    }
    let input = args.input.as_deref().map(|path| read_input(path, &defaults, &limits)).transpose()?;
    let engine = args.model.start(context, args.sampling.seed())?;
    let defaults = args.sampling.over(&with_n(engine.model().default_params.clone()))?;
    args.warn_of_unseen(&defaults);
    super::model::runtime()?.block_on(async {
        match input {
            Some(input) => {
                let requests = Batch { engine: &*engine, defaults }.check(input).await?;
                run_all(&*engine, requests, args.output_format()).await
            }
            None => {
                let beam_search = args.beams.search(&args.sampling, &engine.model().default_params)?;
                let request = Request::new(args.prompt.clone().unwrap_or_default(), defaults);
                let request = Request { beam_search, ..request };
                run_one(&*engine, request, args.output_format()).await
            }
        }
    })
}

impl GenerateArgs {
    fn output_format(&self) -> OutputFormat {
        let usual = if self.input.is_some() { OutputFormat::Json } else { OutputFormat::Text };
        self.output_format.unwrap_or(usual)
    }

    /// Says what was asked for and does not show in the text alone.
    fn warn_of_unseen(&self, params: &SamplingParams) {
        let has_logprobs = params.logprobs.is_some() || params.prompt_logprobs.is_some();
        if has_logprobs && self.output_format() == OutputFormat::Text {
            let how = "--output-format json shows them";
            tracing::warn!(target: "quire::server", "log-probabilities have no place in text: {how}");
        }
    }
}

/// The lines of the file. Bad ones among good ones wait for what the model says of the others: one list has them all.
fn read_input(path: &Path, defaults: &SamplingParams, limits: &ParamLimits) -> Result<Input> {
    let name = path.display().to_string();
    let reader: Box<dyn BufRead> = if name == "-" {
        Box::new(io::stdin().lock())
    } else {
        Box::new(BufReader::new(open(path).map_err(|source| Error::Read { path: path.to_owned(), source })?))
    };
    let input = input::read(&name, reader, defaults, limits);
    if input.is_empty() {
        tracing::warn!(target: "quire::server", "{name} holds no request");
    }
    if input.is_hopeless() { Err(input.refused().into()) } else { Ok(input) }
}

/// A folder can be opened as well, and fails only when it is read.
fn open(path: &Path) -> io::Result<File> {
    if path.is_dir() { Err(io::ErrorKind::IsADirectory.into()) } else { File::open(path) }
}

/// Lines that become requests, all or none.
struct Batch<'a> {
    engine: &'a dyn EngineClient,
    defaults: SamplingParams,
}

impl Batch<'_> {
    /// The requests of all lines, with their prompts as tokens: so each is known to fit before the first one runs.
    async fn check(&self, mut input: Input) -> Result<Vec<Request>, InputError> {
        let mut good = Vec::new();
        for line in std::mem::take(&mut input.lines) {
            match self.request(&line).await {
                Ok(request) => good.push(request),
                Err(error) => input.refuse(line.number, error),
            }
        }
        input.checked().map(|()| good)
    }

    async fn request(&self, line: &InputLine) -> Result<Request, LineError> {
        Ok(self.engine.check(line.request(&self.defaults)?).await?)
    }
}

/// Writes the text as it comes; several outputs, when all have ended.
async fn run_one(engine: &dyn EngineClient, mut request: Request, format: OutputFormat) -> Result<()> {
    let mut stdout = io::stdout().lock();
    let is_drawn_once = request.params.n == 1 && request.beam_search.is_none();
    let is_written_at_once = format == OutputFormat::Text && is_drawn_once;
    request.params.output_kind = OutputKind::Delta;
    let mut stream = engine.submit(request).await?;
    while let Some(event) = output::unless_closed(stream.next()).await? {
        match event {
            RequestEvent::Delta(delta) if is_written_at_once => {
                write!(stdout, "{}", delta.text).and_then(|()| stdout.flush()).map_err(Error::Stdout)?;
            }
            RequestEvent::PromptLogprobs(_) | RequestEvent::Delta(_) | RequestEvent::SoFar(_) => {}
            RequestEvent::Finished(output) => {
                return match is_written_at_once {
                    true => writeln!(stdout).map_err(Error::Stdout),
                    false => output::write(&mut stdout, format, 0, &Ok(*output)),
                };
            }
            RequestEvent::Failed(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Writes outputs in the order of the requests.
async fn run_all(engine: &dyn EngineClient, requests: Vec<Request>, format: OutputFormat) -> Result<()> {
    let num_requests = requests.len();
    let mut stdout = io::stdout().lock();
    let mut open: VecDeque<(usize, Result<RequestStream, quire_engine::Error>)> = VecDeque::new();
    let mut waiting = requests.into_iter().enumerate().peekable();
    let mut num_failed = 0;
    let bar = progress_bar(num_requests);
    loop {
        while open.len() < MAX_OPEN
            && let Some((index, request)) = waiting.peek()
        {
            let stream = engine.submit(request.clone()).await;
            // There is no room now: the first to end makes some.
            if matches!(stream, Err(quire_engine::Error::Overloaded { .. })) && !open.is_empty() {
                break;
            }
            open.push_back((*index, stream));
            waiting.next();
        }
        let Some((index, stream)) = open.pop_front() else { break };
        let outcome = output::unless_closed(finish(stream)).await?;
        if let Err(error) = &outcome {
            num_failed += 1;
            tracing::error!(target: "quire::server", "request {index}: {error}");
        }
        output::write(&mut stdout, format, index, &outcome)?;
        bar.inc(1);
    }
    bar.finish_and_clear();
    if num_failed > 0 {
        return Err(Error::SomeFailed { num_failed, num_requests });
    }
    Ok(())
}

async fn finish(stream: Result<RequestStream, quire_engine::Error>) -> Result<RequestOutput, String> {
    let outcome = match stream {
        Ok(stream) => stream.finish().await,
        Err(error) => Err(error),
    };
    outcome.map_err(|error| with_causes(&error))
}

fn progress_bar(num_requests: usize) -> ProgressBar {
    let style = ProgressStyle::with_template("{pos}/{len} requests [{bar:30}] {elapsed} ({eta} left)")
        .expect("the template names fields that indicatif has");
    // On standard error, and only on a terminal.
    ProgressBar::new(num_requests as u64).with_style(style)
}
