//! How long it takes until a model's files are ready to be loaded: `cargo run --release --example startup MODEL`.

use std::time::Instant;

use quire_models::{Checkpoint, EncodeOptions, LoadOptions, ModelRegistry};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args().nth(1).ok_or("usage: startup MODEL")?;
    for _ in 0..3 {
        let start = Instant::now();
        let checkpoint = Checkpoint::open(path.as_ref(), &LoadOptions::default())?;
        let opened = start.elapsed();
        let registry = ModelRegistry::default();
        let architecture = registry.find(&checkpoint.config().architecture)?;
        let summary = checkpoint.check(&architecture.tensors(&checkpoint)?)?;
        let checked = start.elapsed();
        let tokenizer = checkpoint.tokenizer()?;
        let tokenized = start.elapsed();
        let ids = tokenizer.encode("The capital of France is", EncodeOptions::default())?;
        println!(
            "opened {opened:.1?}, checked {:.1?}, tokenizer {:.1?}, first encoding of {} tokens {:.1?}; {} bytes",
            checked - opened,
            tokenized - checked,
            ids.len(),
            start.elapsed() - tokenized,
            summary.num_bytes
        );
    }
    Ok(())
}
