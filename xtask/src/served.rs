//! `bench-serve`: the server under load, in turn with the engine alone and with a peer's server.

use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use serde_json::Value;

use crate::error::{Error, Result};
use crate::fetch;
use crate::peer::LlamaCpp;
use crate::print::out;
use crate::process::{self, cargo, output, root};
use crate::spread::Spread;

#[derive(clap::Args)]
pub(crate) struct Options {
    /// The peer whose server is measured too: `llama.cpp`
    #[arg(long)]
    against: Option<String>,
    /// GGUF file to measure with; the default model where none is named
    #[arg(long)]
    model: Option<PathBuf>,
    /// How often each is measured, in turn
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// Threads of engine and peer
    #[arg(long, default_value_t = 2)]
    threads: usize,
    /// Sequences at once
    #[arg(long, default_value_t = 16)]
    concurrency: usize,
    /// Requests of a round
    #[arg(long, default_value_t = 64)]
    num_prompts: usize,
    /// Tokens of each prompt
    #[arg(long, default_value_t = 128)]
    input_len: usize,
    /// Tokens generated after it
    #[arg(long, default_value_t = 64)]
    output_len: usize,
}

/// What the load generator says of a server, and what that is called here.
const COLUMNS: [(&str, &str); 4] = [
    ("/output_tokens_per_s", "tokens/s"),
    ("/ttft_ms/p50", "TTFT p50 [ms]"),
    ("/tpot_ms/p50", "TPOT p50 [ms]"),
    ("/server_cpu_us_per_token", "processor time [us/token]"),
];

/// How long a server may take to be ready.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) fn run(options: &Options) -> Result<()> {
    let model = options.model.clone().map_or_else(|| fetch::SMOLLM2.fetch(), Ok)?;
    let peer = options.against.as_deref().map(|name| LlamaCpp::named(name, &model)).transpose()?;
    process::run(&mut cargo(["build", "--quiet", "--release", "-p", "quire-llm"]))?;
    let (mut alone, mut ours, mut theirs) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..options.rounds {
        alone.push(options.measure_alone(&model)?);
        ours.push(options.measure(options.quire(&model))?);
        if let Some(peer) = &peer {
            theirs.push(options.measure(options.llama_server(peer, &model))?);
        }
    }
    out!("{:46} {:>30}", model.display(), "min / median / max");
    for (who, reports) in [("engine alone", &alone), ("server", &ours), ("peer's server", &theirs)] {
        for (pointer, what) in COLUMNS {
            let values = reports.iter().filter_map(|report| report.pointer(pointer)?.as_f64());
            Spread::of(values).iter().for_each(|spread| out!("{:46} {spread:>30}", format!("{who}, {what}")));
        }
    }
    Ok(())
}

impl Options {
    /// The report of the engine without a server.
    fn measure_alone(&self, model: &Path) -> Result<Value> {
        let mut command = quire();
        command.args(["bench", "throughput"]).arg(model).args(self.load_flags()).args(self.engine_flags());
        report(command.args(["--num-iters", "1", "--num-iters-warmup", "1"]))
    }

    /// The report of the load generator on a server.
    fn measure(&self, server: Command) -> Result<Value> {
        let server = Server::start(server)?;
        let mut command = quire();
        command.args(["bench", "serve", &format!("http://{}", server.address)]).args(self.load_flags());
        command.args(flags(&[("max-concurrency", self.concurrency), ("num-warmups", 1)]));
        report(command.args(["--server-pid", &server.child.id().to_string()]))
    }

    fn quire(&self, model: &Path) -> Command {
        let mut command = quire();
        command.arg("serve").arg(model).args(self.engine_flags());
        command
    }

    fn llama_server(&self, peer: &LlamaCpp, model: &Path) -> Command {
        let context = self.concurrency * (self.input_len + self.output_len).next_multiple_of(256);
        let mut command = peer.program("llama-server");
        command.arg("-m").arg(model).args(["--host", "127.0.0.1", "--no-cache-prompt", "--cache-ram", "0"]);
        command.args(["-t", &self.threads.to_string(), "-np", &self.concurrency.to_string()]);
        command.args(["-c", &context.to_string()]);
        command
    }

    fn engine_flags(&self) -> Vec<String> {
        let mut words = flags(&[("threads", self.threads), ("max-num-seqs", self.concurrency)]);
        words.push("--no-enable-prefix-caching".to_owned());
        words
    }

    fn load_flags(&self) -> Vec<String> {
        let (num, input, output) = (self.num_prompts, self.input_len, self.output_len);
        flags(&[("num-prompts", num), ("input-len", input), ("output-len", output)])
    }
}

/// A server that ends with this.
struct Server {
    child: Child,
    address: SocketAddr,
}

impl Server {
    /// Starts it on a port of its own, and waits until it is well.
    fn start(mut command: Command) -> Result<Self> {
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = |source| Error::Start { program: program.clone(), source };
        let free = TcpListener::bind("127.0.0.1:0").and_then(|listener| listener.local_addr());
        let address = free.map_err(failed)?;
        command.args(["--port", &address.port().to_string()]);
        let spawned = command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn();
        let mut server = Self { child: spawned.map_err(failed)?, address };
        let started = Instant::now();
        while !server.is_well() {
            let ended = server.child.try_wait().map_err(failed)?;
            if ended.is_some() || started.elapsed() > PATIENCE {
                return Err(Error::NotReady { program, seconds: started.elapsed().as_secs() });
            }
            std::thread::sleep(Duration::from_millis(20));
        }
        Ok(server)
    }

    fn is_well(&self) -> bool {
        let ask = || -> std::io::Result<String> {
            let mut stream = TcpStream::connect(self.address)?;
            stream.write_all(b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")?;
            let mut answer = String::new();
            stream.read_to_string(&mut answer)?;
            Ok(answer)
        };
        ask().is_ok_and(|answer| answer.starts_with("HTTP/1.1 200"))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn quire() -> Command {
    Command::new(root().join("target/release/quire"))
}

fn flags(values: &[(&str, usize)]) -> Vec<String> {
    values.iter().flat_map(|(name, value)| [format!("--{name}"), value.to_string()]).collect()
}

/// The line of JSON that a benchmark ends with.
fn report(command: &mut Command) -> Result<Value> {
    let text = output(command)?;
    let line = text.lines().rev().find(|line| line.starts_with('{')).unwrap_or_default();
    let parsed = serde_json::from_str(line);
    parsed.map_err(|_| Error::NoMeasurement { program: "quire bench".to_owned(), output: text.clone() })
}
