//! The server under load, without a model: the real engine and HTTP server on a device that only takes time, and clients
//! in a process of their own.
//!
//! `cargo bench -p quire-llm --bench load -- --server-cpu 0 --clients-cpu 1`: 1,000 streams at once, steps of 50 ms. Says
//! what went wrong (nothing should), the server's processor time a token, how long tokens took from their step to the
//! socket, and whether blocks and memory came back.

mod clients;
mod device;
mod process;

use std::error::Error;
use std::net::{SocketAddr, TcpListener};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

use clap::Parser;
use quire::ApiServer;
use quire_engine::{
    AsyncLlm, EngineClient, EngineConfig, EngineOptions, EngineParts, EngineStats, EosTokens, Histogram,
    ModelFacts,
};
use quire_executor::DeviceCapacity;
use quire_models::Tokenizer;
use quire_models::testing::TinyTokenizer;
use tokio::runtime::Builder;

use self::clients::{Counts, Load};
use self::device::PacedExecutor;

/// As the program has it.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const BLOCK_SIZE: usize = 16;
const MAX_MODEL_LEN: usize = 131_072;

/// How often memory is looked at.
const PERIOD: Duration = Duration::from_secs(5);

#[derive(Parser)]
struct Args {
    /// Streams that are open at any time.
    #[arg(long, default_value_t = 1000)]
    num_streams: usize,
    #[arg(long, default_value_t = 20_000)]
    num_requests: usize,
    /// Tokens of an answer, in the mean.
    #[arg(long, default_value_t = 64)]
    num_tokens: usize,
    /// One request out of so many has a prompt of 100 kB.
    #[arg(long, default_value_t = 200)]
    long_every: usize,
    #[arg(long, default_value_t = 50)]
    step_ms: u64,
    /// The processor that the server is held to, as `taskset -c` takes it.
    #[arg(long)]
    server_cpu: Option<String>,
    /// The same for the clients.
    #[arg(long)]
    clients_cpu: Option<String>,
    /// Puts the load on a server there, and is none.
    #[arg(long, hide = true)]
    clients_of: Option<SocketAddr>,
    /// What cargo says.
    #[arg(long, hide = true)]
    bench: bool,
}

fn main() -> Result<()> {
    let args = Args::parse();
    match args.clients_of {
        Some(address) => be_clients(address, args.load()),
        None => be_server(&args),
    }
}

impl Args {
    fn load(&self) -> Load {
        Load {
            num_requests: self.num_requests,
            num_streams: self.num_streams,
            num_tokens: self.num_tokens,
            long_every: self.long_every,
        }
    }
}

fn be_clients(address: SocketAddr, load: Load) -> Result<()> {
    let counts = Builder::new_current_thread().enable_all().build()?.block_on(clients::run(address, load));
    println!("{counts}");
    Ok(())
}

fn be_server(args: &Args) -> Result<()> {
    if let Some(cpu) = &args.server_cpu {
        // Before there are other threads: those to come are held there too.
        let pid = std::process::id().to_string();
        Command::new("taskset").args(["-p", "-c", cpu, &pid]).stdout(Stdio::null()).status()?;
    }
    // As `quire serve` has it.
    let runtime =
        Builder::new_multi_thread().worker_threads(2).thread_name("quire-http").enable_all().build();
    runtime?.block_on(measure(args))
}

async fn measure(args: &Args) -> Result<()> {
    let engine = engine(args)?;
    let server = ApiServer::new(Arc::clone(&engine))?;
    let listener = TcpListener::bind("127.0.0.1:0")?;
    let address = listener.local_addr()?;
    let (before, cpu_before) = (engine.stats(), process::cpu());
    let started = Instant::now();
    let serving = server.serve(listener, std::future::pending());
    let counts = tokio::select! {
        ended = serving => { ended?; return Err("the server has ended".into()) }
        counts = counts(args, address) => counts?,
    };
    let (seconds, cpu) = (started.elapsed().as_secs_f64(), process::cpu() - cpu_before);
    let after = idle(&*engine).await;
    println!(
        "{} answers, {} errors, {} tokens in {seconds:.1} s: {:.0} tokens/s, {} steps",
        counts.num_answers,
        counts.num_errors,
        counts.num_pieces,
        counts.num_pieces as f64 / seconds,
        after.num_steps
    );
    tell_cpu(cpu, counts.num_pieces);
    tell_writes(&server.write_times());
    println!("blocks free or cached: {} before, {} after", available(&before), available(&after));
    println!(
        "running, waiting, live blocks after: {}, {}, {}",
        after.num_running, after.num_waiting, after.num_live_blocks
    );
    Ok(())
}

/// Runs the clients, and says meanwhile how much memory is used.
async fn counts(args: &Args, address: SocketAddr) -> Result<Counts> {
    let clients = spawn_clients(args, address)?;
    let mut output = tokio::task::spawn_blocking(move || clients.wait_with_output());
    let mut period = tokio::time::interval(PERIOD);
    loop {
        tokio::select! {
            output = &mut output => {
                let line = String::from_utf8(output??.stdout)?;
                return Ok(Counts::parse(&line).ok_or("the clients have failed")?);
            }
            _ = period.tick() => eprintln!("{} MB in memory", process::resident_bytes() >> 20),
        }
    }
}

fn spawn_clients(args: &Args, address: SocketAddr) -> Result<Child> {
    let program = std::env::current_exe()?;
    let mut command = match &args.clients_cpu {
        Some(cpu) => {
            let mut command = Command::new("taskset");
            command.args(["-c", cpu]).arg(program);
            command
        }
        None => Command::new(program),
    };
    command.args(["--clients-of", &address.to_string()]);
    let load = [
        ("--num-streams", args.num_streams),
        ("--num-requests", args.num_requests),
        ("--num-tokens", args.num_tokens),
        ("--long-every", args.long_every),
    ];
    for (name, value) in load {
        command.args([name.to_owned(), value.to_string()]);
    }
    Ok(command.stdout(Stdio::piped()).spawn()?)
}

fn engine(args: &Args) -> Result<Arc<dyn EngineClient>> {
    let capacity = DeviceCapacity {
        num_blocks: 1 << 18,
        block_size: BLOCK_SIZE,
        block_bytes: 0,
        max_num_seqs: args.num_streams,
        max_num_batched_tokens: 16_384,
        max_model_len: MAX_MODEL_LEN,
        vocab_size: TinyTokenizer::tokens().len(),
        num_swap_blocks: 0,
        swap_bytes_per_s: 0,
        max_in_flight: 2,
    };
    let options = EngineOptions::new("load").max_num_seqs(args.num_streams).max_num_batched_tokens(16_384);
    let config = EngineConfig::resolve(options, ModelFacts { max_model_len: MAX_MODEL_LEN })?;
    let executor = PacedExecutor::new(capacity, Duration::from_millis(args.step_ms));
    let parts = EngineParts {
        tokenizer: Some(tokenizer()?),
        eos: EosTokens { silent: [TinyTokenizer::EOS].into(), ..EosTokens::default() },
        ..EngineParts::new(config, Box::new(executor))
    };
    Ok(Arc::new(AsyncLlm::start(parts)?))
}

fn tokenizer() -> Result<Tokenizer> {
    let folder = tempfile::tempdir()?;
    let path = folder.path().join("tokenizer.json");
    std::fs::write(&path, TinyTokenizer::json().to_string())?;
    let config = TinyTokenizer::config_json().to_string();
    std::fs::write(folder.path().join("tokenizer_config.json"), config)?;
    Ok(Tokenizer::open(&path)?)
}

/// The numbers once nothing runs any more.
async fn idle(engine: &dyn EngineClient) -> EngineStats {
    loop {
        let stats = engine.stats();
        if (stats.num_running, stats.num_waiting, stats.num_live_blocks) == (0, 0, 0) {
            return stats;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
}

fn available(stats: &EngineStats) -> usize {
    stats.num_free_blocks + stats.num_cached_blocks
}

fn tell_cpu(cpu: Duration, num_tokens: usize) {
    let us = |time: Duration| time.as_secs_f64() * 1e6 / num_tokens.max(1) as f64;
    println!("processor time of the server: {:.1} us a token", us(cpu));
    for (name, time) in process::cpu_by_thread().iter().filter(|(_, time)| !time.is_zero()) {
        println!("    {:.1} us in {name}", us(*time));
    }
}

/// The shares of tokens that were written within each bound.
fn tell_writes(times: &Histogram) {
    let count = times.count().max(1) as f64;
    let bound = |share: f64| times.cumulative().find(|(_, num)| *num as f64 >= share * count);
    let shown = |share| {
        bound(share).map_or("above all bounds".to_owned(), |(bound, _)| format!("{:.2} ms", 1e3 * bound))
    };
    println!(
        "from a step's commit to the socket, {} tokens: mean {:.2} ms, p50 <= {}, p99 <= {}, p99.9 <= {}",
        times.count(),
        1e3 * times.sum() / count,
        shown(0.5),
        shown(0.99),
        shown(0.999)
    );
}
