//! Quire's command line with a scheduling policy, an attention part and a model of somebody else's:
//!
//! ```sh
//! cargo run -- generate --prompt "Once upon a time" --scheduling-policy mine --device near
//! ```

mod attention;
mod policy;

use std::process::ExitCode;
use std::sync::Arc;

use quire::kernels::{Error, Kernels};
use quire::models::{Architecture, Llama, Loader, Model};
use quire::{App, BackendOptions};

use crate::attention::NearAttention;
use crate::policy::FairShare;

fn main() -> ExitCode {
    App::new()
        .policy("mine", FairShare::default)
        .backend("near", near)
        .model("StrangerForCausalLM", stranger)
        .run()
}

/// The CPU with attention to the nearest 32 tokens.
fn near(options: &BackendOptions) -> Result<Kernels, Error> {
    let cpu = quire::cpu_kernels(options)?;
    let attention = NearAttention::new(Arc::clone(&cpu.parts().attention), 32);
    cpu.with_attention(Arc::new(attention))
}

/// A Llama by another name: where a model differs, its file does.
fn stranger(loader: &Loader<'_>) -> quire::models::Result<Box<dyn Model>> {
    Llama.build(loader)
}
