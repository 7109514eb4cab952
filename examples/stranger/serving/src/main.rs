//! Quire's command line with a scheduling policy, a logits processor, an attention part and a model of somebody else's:
//!
//! ```sh
//! cargo run -- generate --prompt "Once upon a time" --scheduling-policy mine --device mine --kv-cache-dtype float32 \
//!     --logits-processor no_stutter=2.5
//! ```

mod attention;
mod policy;
mod processor;

use std::process::ExitCode;
use std::sync::Arc;

use quire::kernels::{Error, Kernels};
use quire::models::{Architecture, Llama, Loader, Model};
use quire::{App, BackendOptions};

use crate::attention::MyAttention;
use crate::policy::FairShare;
use crate::processor::NoStutter;

fn main() -> ExitCode {
    App::new()
        .policy("mine", FairShare::default)
        .logits_processor("no_stutter", || NoStutter)
        .backend("mine", mine)
        .model("StrangerForCausalLM", stranger)
        .run()
}

/// The CPU with an attention part of one's own.
fn mine(options: &BackendOptions) -> Result<Kernels, Error> {
    let cpu = quire::cpu_kernels(options)?;
    let attention = MyAttention { device: cpu.device().id() };
    cpu.with_attention(Arc::new(attention))
}

/// A Llama by another name: where a model differs, its file does.
fn stranger(loader: &Loader<'_>) -> quire::models::Result<Box<dyn Model>> {
    Llama.build(loader)
}
