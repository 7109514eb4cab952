//! `quire serve`.

use std::fs;
use std::net::{SocketAddr, TcpListener, ToSocketAddrs};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use clap::Args;
use clap::builder::NonEmptyStringValueParser;
use quire_engine::chat::{ReasoningFormat, ToolFormat};
use tokio::runtime::{Builder, Runtime};

use super::Context;
use super::model::ModelArgs;
use super::values;
use super::vllm_flags::VllmFlags;
use crate::env::Env;
use crate::error::{Error, Result};
use crate::http::listener::{HEAD_TIMEOUT, Listening};
use crate::http::tools::ReadingSettings;
use crate::http::{
    CertificateFiles, CorsSettings, ErrorForm, HttpSettings, KeyLimits, Server, Service, routes, server, tls,
};
use crate::otlp;
use crate::signal::Loading;

#[derive(Args)]
pub(crate) struct ServeArgs {
    #[command(flatten)]
    model: ModelArgs,
    #[command(flatten)]
    http: HttpFlags,
    #[command(flatten)]
    vllm: VllmFlags,
    /// Flags in a YAML file, `port: 8000` for --port 8000; those of the command line win.
    #[arg(long, value_name = "FILE")]
    #[allow(dead_code, reason = "it has been read before the flags were")]
    config: Option<PathBuf>,
    /// The seed of requests without one, and of made-up weights (--load-format dummy).
    #[arg(long, value_name = "N", value_parser = values::count)]
    seed: Option<u64>,
}

#[derive(Args)]
#[command(next_help_heading = "Server")]
struct HttpFlags {
    /// The address to listen on; 0.0.0.0 is all of them.
    #[arg(long, value_name = "HOST", default_value = "127.0.0.1")]
    host: String,
    /// The port to listen on; 0 takes a free one. VLLM_PORT says the same.
    #[arg(long, value_name = "PORT")]
    port: Option<u16>,
    /// A key that requests must bring; may be given several times. VLLM_API_KEY is one as well.
    #[arg(long, value_name = "KEY", value_parser = NonEmptyStringValueParser::new())]
    api_key: Vec<String>,
    /// A file with a key a line.
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Answers as that version of vLLM where it differs: 0.7 has flat errors, and usage in streams with empty options.
    #[arg(long, value_name = "VERSION", value_parser = ["0.7"])]
    compat: Option<String>,
    /// Who speaks in the answers of chats.
    #[arg(long, value_name = "ROLE", default_value = "assistant")]
    response_role: String,
    /// Writes tokens as token_id:ID in log-probabilities.
    #[arg(long)]
    return_tokens_as_token_ids: bool,
    /// Shows in usage how many prompt tokens the prefix cache had.
    #[arg(long)]
    enable_prompt_tokens_details: bool,
    /// Refuses fields of requests that have no effect, as the header X-Quire-Strict: 1 does for one.
    #[arg(long)]
    strict: bool,
    /// Leaves out the pages /docs and /openapi.json, as in vLLM.
    #[arg(long)]
    disable_fastapi_docs: bool,
    /// Leaves out the metrics' names of vLLM.
    #[arg(long)]
    no_vllm_metrics: bool,
    /// Bytes of a request's body, such as 16MiB.
    #[arg(long, value_name = "BYTES", default_value = "16MiB", value_parser = values::some_bytes)]
    max_body_bytes: u64,
    /// Looks for calls of tools in answers, as the model writes them: needs --tool-call-parser.
    #[arg(long, requires = "tool_call_parser")]
    enable_auto_tool_choice: bool,
    /// How the model writes calls of tools: hermes (Qwen), llama3_json, mistral or pythonic.
    #[arg(long, value_name = "NAME", value_parser = tool_format)]
    tool_call_parser: Option<ToolFormat>,
    /// How the model sets its reasoning apart: qwen3 or deepseek_r1.
    #[arg(long, value_name = "NAME", value_parser = reasoning_format)]
    reasoning_parser: Option<ReasoningFormat>,
    /// vLLM's switch beside --reasoning-parser, which does without.
    #[arg(long, hide = true, requires = "reasoning_parser")]
    enable_reasoning: bool,
    /// Requests of one API key that are answered at the same time.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    max_requests_per_key: Option<u32>,
    /// Tokens, of prompts and generated, that one API key may use in a minute.
    #[arg(long, value_name = "N", value_parser = values::some)]
    tokens_per_minute_per_key: Option<u64>,
    /// Makes each API key a tenant: its cached blocks are its own, and --scheduling-policy fair shares among keys.
    #[arg(long)]
    keys_are_tenants: bool,
    /// Origins whose pages may speak with the server: a list with commas, or JSON as vLLM has it.
    #[arg(long, value_name = "LIST", default_value = "*")]
    allowed_origins: String,
    /// Methods that pages of other origins may use.
    #[arg(long, value_name = "LIST", default_value = "*")]
    allowed_methods: String,
    /// Headers that pages of other origins may send.
    #[arg(long, value_name = "LIST", default_value = "*")]
    allowed_headers: String,
    /// Lets browsers send cookies and the like along.
    #[arg(long)]
    allow_credentials: bool,
    /// Secures connections: the server's certificate and those above it, in PEM form. Renewed files are taken over.
    #[arg(long, value_name = "FILE", requires = "ssl_keyfile")]
    ssl_certfile: Option<PathBuf>,
    /// The key of the certificate, in PEM form.
    #[arg(long, value_name = "FILE", requires = "ssl_certfile")]
    ssl_keyfile: Option<PathBuf>,
    /// Sends a span for each request and each of its stages there: OTLP over HTTP, http://HOST:4318/v1/traces. Needs a build
    /// with the feature otlp.
    #[arg(long, value_name = "URL")]
    otlp_traces_endpoint: Option<String>,
    /// Seconds after which a client that takes nothing of its answer is given up.
    #[arg(long, value_name = "S", default_value_t = 60, value_parser = values::some_seconds)]
    write_timeout: u64,
    /// Seconds that running requests may take once the server is told to end.
    #[arg(long, value_name = "S", default_value_t = 30, value_parser = values::seconds)]
    shutdown_timeout: u64,
}

pub(crate) fn run(context: &Context<'_>, args: &ServeArgs) -> Result<()> {
    let loading = Loading::begin();
    args.vllm.check()?;
    // A port that is taken is told before a model is loaded, and so is all else that is wrong with these flags.
    let listener = args.http.bind(&context.env)?;
    let mut settings = args.http.settings(&context.env)?;
    let (tls, reloader) = args.http.certificate()?.map(tls::acceptor).transpose()?.unzip();
    drop(settings.cors.layer()?);
    let exporter = otlp::start(args.http.otlp_traces_endpoint.as_deref(), "quire")?;
    let engine = args.model.start(context, args.seed)?;
    let engine = exporter.iter().fold(engine, |engine, exporter| exporter.trace(engine));
    settings.served_names =
        std::iter::once(engine.model().name.clone()).chain(args.model.other_names()).collect();
    let service = Arc::new(Service::new(engine, settings).map_err(Error::Runtime)?);
    let write_times = service.write_times.clone();
    let error_form = service.settings.error_form;
    let HttpSettings { write_timeout, shutdown_timeout, .. } = service.settings;
    let listening = Listening {
        router: routes::router(Arc::clone(&service))?,
        tls,
        write_timeout,
        head_timeout: HEAD_TIMEOUT,
        write_times,
        error_form,
    };
    let engine = Arc::clone(&service.engine);
    let server = Server { service, listening, reloader, shutdown_timeout };
    let runtime = runtime()?;
    let ran = runtime.block_on(server.run(listener, loading)).map_err(Error::Runtime);
    server::leave(runtime, engine, ran.as_ref().is_ok_and(|has_drained| *has_drained));
    ran.map(drop)
}

impl HttpFlags {
    fn bind(&self, env: &Env) -> Result<TcpListener> {
        let port = match (self.port, env.get("VLLM_PORT")) {
            (Some(port), _) => port,
            (None, None) => 8000,
            (None, Some(given)) => {
                let (name, expected) = ("VLLM_PORT", "a port, from 0 to 65535");
                given.parse().map_err(|_| Error::Variable { name, given: given.to_owned(), expected })?
            }
        };
        let name = format!("{}:{port}", self.host);
        let failed = |source| Error::Listen { address: name.clone(), source };
        let addresses: Vec<SocketAddr> =
            (self.host.as_str(), port).to_socket_addrs().map_err(failed)?.collect();
        let listener = TcpListener::bind(&addresses[..]).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(listener)
    }

    fn keys(&self, env: &Env) -> Result<Vec<String>> {
        let of_file = self.api_key_file.as_deref().map(read_keys).transpose()?.unwrap_or_default();
        let of_env = env.get("VLLM_API_KEY").map(str::to_owned);
        if of_env.as_deref().is_some_and(|key| key.trim().is_empty()) {
            tracing::warn!(target: "quire::server", "VLLM_API_KEY is empty: it is no key");
        }
        let all = self.api_key.iter().cloned().chain(of_file).chain(of_env);
        Ok(all.filter(|key| !key.trim().is_empty()).collect())
    }

    /// All but the names, which the model has.
    fn settings(&self, env: &Env) -> Result<HttpSettings> {
        let is_old = self.compat.is_some();
        let plain = HttpSettings::new(Vec::new());
        Ok(HttpSettings {
            api_keys: self.keys(env)?,
            error_form: if is_old { ErrorForm::Flat } else { ErrorForm::Nested },
            includes_usage: is_old,
            return_tokens_as_token_ids: self.return_tokens_as_token_ids,
            enable_prompt_tokens_details: self.enable_prompt_tokens_details,
            response_role: self.response_role.clone(),
            max_body_bytes: usize::try_from(self.max_body_bytes).unwrap_or(usize::MAX),
            step_deadline: step_deadline(env)?.unwrap_or(plain.step_deadline),
            has_vllm_metrics: !self.no_vllm_metrics,
            key_limits: KeyLimits {
                max_requests: self.max_requests_per_key.map(|max| max as usize),
                tokens_per_minute: self.tokens_per_minute_per_key,
            },
            reading: ReadingSettings {
                tool_format: self.tool_call_parser.filter(|_| self.enable_auto_tool_choice),
                reasoning_format: self.reasoning_parser,
            },
            keys_are_tenants: self.keys_are_tenants,
            cors: CorsSettings {
                origins: list(&self.allowed_origins),
                methods: list(&self.allowed_methods),
                headers: list(&self.allowed_headers),
                allow_credentials: self.allow_credentials,
            },
            write_timeout: Duration::from_secs(self.write_timeout),
            shutdown_timeout: Duration::from_secs(self.shutdown_timeout),
            has_docs: !self.disable_fastapi_docs,
            is_strict: self.strict,
            ..plain
        })
    }

    fn certificate(&self) -> Result<Option<CertificateFiles>> {
        match (&self.ssl_certfile, &self.ssl_keyfile) {
            (Some(certificates), Some(key)) => {
                Ok(Some(CertificateFiles { certificates: certificates.clone(), key: key.clone() }))
            }
            _ => Ok(None),
        }
    }
}

fn tool_format(name: &str) -> std::result::Result<ToolFormat, &'static str> {
    ToolFormat::named(name).ok_or("expected hermes, llama3_json, mistral or pythonic")
}

fn reasoning_format(name: &str) -> std::result::Result<ReasoningFormat, &'static str> {
    ReasoningFormat::named(name).ok_or("expected qwen3 or deepseek_r1")
}

/// A list as vLLM's flags have it, `["a", "b"]`, or with commas.
fn list(text: &str) -> Vec<String> {
    serde_json::from_str(text)
        .unwrap_or_else(|_| text.split(',').map(|part| part.trim().to_owned()).collect())
}

/// `VLLM_ENGINE_ITERATION_TIMEOUT_S`.
fn step_deadline(env: &Env) -> Result<Option<Duration>> {
    let name = "VLLM_ENGINE_ITERATION_TIMEOUT_S";
    let Some(text) = env.get(name) else { return Ok(None) };
    match text.parse() {
        Ok(seconds) if seconds > 0 => Ok(Some(Duration::from_secs(seconds))),
        _ => Err(Error::Variable {
            name,
            given: text.to_owned(),
            expected: "a whole number of seconds, at least 1",
        }),
    }
}

fn read_keys(path: &Path) -> Result<Vec<String>> {
    let text = fs::read_to_string(path).map_err(|source| Error::Read { path: path.to_owned(), source })?;
    let lines = text.lines().map(str::trim);
    let keys: Vec<_> =
        lines.filter(|line| !line.is_empty() && !line.starts_with('#')).map(str::to_owned).collect();
    // Whoever names a file does not mean a server that is open to all.
    if keys.is_empty() { Err(Error::NoKeys { path: path.to_owned() }) } else { Ok(keys) }
}

/// Two threads answer all connections: the engine has its own, and tokens leave in batches.
fn runtime() -> Result<Runtime> {
    Builder::new_multi_thread()
        .worker_threads(2)
        .thread_name("quire-http")
        .enable_all()
        .build()
        .map_err(Error::Runtime)
}
