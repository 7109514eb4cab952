//! `quire inspect`.

use std::collections::BTreeMap;
use std::io::{self, Write};

use clap::Args;
use quire_engine::{Bytes, EnginePlan};
use quire_models::check;
use serde::Serialize;

use super::Context;
use super::model::ModelArgs;
use super::output::{OutputFormat, write_field, write_line};
use crate::error::{Error, Result, with_causes};
use crate::start;

#[derive(Args)]
pub(crate) struct InspectArgs {
    #[command(flatten)]
    model: ModelArgs,
    /// text or json.
    #[arg(long, value_name = "FORMAT", default_value = "text")]
    output_format: OutputFormat,
}

/// What there is to say of a model. The fields are an interface: programs read them.
#[derive(Serialize)]
struct Report {
    model: String,
    path: String,
    architecture: String,
    /// The commit of the hub's repository, where the files are of one.
    revision: Option<String>,
    /// What outputs depend on, as a number.
    fingerprint: String,
    format: String,
    num_parameters: u64,
    num_layers: usize,
    hidden_size: usize,
    num_heads: usize,
    num_kv_heads: usize,
    head_dim: usize,
    vocab_size: usize,
    /// The longest context that the model was made for.
    model_max_len: usize,
    /// Bytes of the weights by the dtype they are kept in.
    weight_bytes_by_dtype: BTreeMap<String, u64>,
    device: String,
    weight_bytes: usize,
    scratch_bytes: usize,
    row_state_bytes: usize,
    graph_bytes: usize,
    kv_cache_bytes: usize,
    total_bytes: usize,
    device_bytes: usize,
    kv_cache_dtype: String,
    block_size: usize,
    block_bytes: usize,
    num_blocks: usize,
    num_kv_cache_tokens: usize,
    max_model_len: usize,
    max_num_seqs: usize,
    max_num_batched_tokens: usize,
    /// Sequences of `max_model_len` that the pool holds at once.
    max_concurrency: f64,
}

pub(crate) fn run(context: &Context<'_>, args: &InspectArgs) -> Result<()> {
    let (options, parts) = args.model.resolve(context, None)?;
    let plan = start::builder(options, &parts).plan()?;
    warn_of_tokenizer(&plan);
    let report = Report::of(&plan);
    let mut stdout = io::stdout().lock();
    match args.output_format {
        OutputFormat::Json => write_line(&mut stdout, &report),
        OutputFormat::Text => write!(stdout, "{report}").map_err(Error::Stdout),
    }
}

/// A model without a tokenizer is planned like any other, but not loaded, unless its weights are made up. One that was
/// given has been opened for the plan.
fn warn_of_tokenizer(plan: &EnginePlan) {
    if plan.config().has_dummy_weights() || plan.config().tokenizer.is_some() {
        return;
    }
    if let Err(error) = check::tokenizer(plan.checkpoint()) {
        let error = with_causes(&error);
        tracing::warn!(target: "quire::server", "other commands would refuse this model: {error}");
    }
}

impl Report {
    fn of(plan: &EnginePlan) -> Self {
        let (config, memory, weights) = (plan.config(), plan.memory(), plan.weights());
        let model = plan.checkpoint().config();
        let limits = memory.runner.limits;
        let by_dtype = weights.by_dtype.iter().map(|(dtype, (_, num_bytes))| (dtype.to_string(), *num_bytes));
        Self {
            model: config.served_model_name.clone(),
            path: config.model.display().to_string(),
            architecture: model.architecture.clone(),
            revision: config.revision.clone(),
            fingerprint: format!("{:016x}", plan.fingerprint().all),
            format: plan.checkpoint().format().to_owned(),
            num_parameters: weights.num_parameters,
            num_layers: model.num_layers,
            hidden_size: model.hidden_size,
            num_heads: model.num_heads,
            num_kv_heads: model.num_kv_heads,
            head_dim: model.head_dim,
            vocab_size: model.vocab_size,
            model_max_len: model.max_context(),
            weight_bytes_by_dtype: by_dtype.collect(),
            device: format!("{} ({})", memory.device.backend, memory.device.name),
            weight_bytes: memory.weight_bytes,
            scratch_bytes: memory.scratch_bytes,
            row_state_bytes: memory.row_state_bytes,
            graph_bytes: memory.graph_bytes,
            kv_cache_bytes: memory.pool_bytes(),
            total_bytes: memory.total_bytes(),
            device_bytes: memory.device.total_bytes,
            kv_cache_dtype: memory
                .kv_groups
                .first()
                .map_or_else(String::new, |group| group.dtype.to_string()),
            block_size: limits.block_size,
            block_bytes: memory.block_bytes,
            num_blocks: memory.num_blocks,
            num_kv_cache_tokens: memory.num_pool_tokens(),
            max_model_len: limits.max_model_len,
            max_num_seqs: limits.max_num_seqs,
            max_num_batched_tokens: limits.max_num_batched_tokens,
            max_concurrency: memory.concurrency(),
        }
    }
}

impl std::fmt::Display for Report {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let size = |num_bytes: usize| Bytes(num_bytes as u64).to_string();
        let weights = self.weight_bytes_by_dtype.iter().map(|(dtype, n)| format!("{} in {dtype}", Bytes(*n)));
        let mut line = |name: &str, value: String| write_field(f, name, &value);
        line("model", format!("{} ({}, {})", self.model, self.path, self.format))?;
        line("architecture", format!("{}, {} parameters", self.architecture, self.num_parameters))?;
        line(
            "layers",
            format!(
                "{} of {} wide, {} heads over {} key and value heads of {}",
                self.num_layers, self.hidden_size, self.num_heads, self.num_kv_heads, self.head_dim
            ),
        )?;
        self.revision.iter().try_for_each(|revision| line("revision", revision.clone()))?;
        line("fingerprint", self.fingerprint.clone())?;
        line("vocabulary", format!("{} tokens", self.vocab_size))?;
        line("context", format!("{} tokens, made for {}", self.max_model_len, self.model_max_len))?;
        line("device", format!("{}, {}", self.device, size(self.device_bytes)))?;
        line(
            "weights",
            format!("{:>11}  ({})", size(self.weight_bytes), weights.collect::<Vec<_>>().join(", ")),
        )?;
        line(
            "scratch",
            format!("{:>11}  ({} tokens a step)", size(self.scratch_bytes), self.max_num_batched_tokens),
        )?;
        line("row state", format!("{:>11}  ({} sequences)", size(self.row_state_bytes), self.max_num_seqs))?;
        line("graphs", format!("{:>11}", size(self.graph_bytes)))?;
        line(
            "kv cache",
            format!(
                "{:>11}  ({} blocks of {} tokens, {} each, in {})",
                size(self.kv_cache_bytes),
                self.num_blocks,
                self.block_size,
                size(self.block_bytes),
                self.kv_cache_dtype
            ),
        )?;
        line("total", format!("{:>11}", size(self.total_bytes)))?;
        line(
            "concurrency",
            format!(
                "{:.2} sequences of {} tokens; {} tokens in all",
                self.max_concurrency, self.max_model_len, self.num_kv_cache_tokens
            ),
        )
    }
}
