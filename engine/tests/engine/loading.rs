//! Starting an engine: weights and texts are read at the same time.

use std::fs;

use quire_engine::{EngineBuilder, EngineOptions, Error};
use quire_kernels::reference;
use quire_models::testing::TinyModel;
use quire_models::{Loader, Model, ModelRegistry};
use quire_scheduler::PolicyRegistry;

/// Reads one tensor after the other for ever.
fn endless(loader: &Loader<'_>) -> quire_models::Result<Box<dyn Model>> {
    loop {
        loader.vector("model.norm.weight", loader.config().hidden_size)?;
    }
}

#[test]
fn a_broken_tokenizer_ends_the_reading_of_weights_and_is_told_alone() {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::llama().write_folder(folder.path()).unwrap();
    fs::write(folder.path().join("tokenizer.json"), "{}").unwrap();
    let mut models = ModelRegistry::empty();
    models.register("LlamaForCausalLM", endless);
    let options = EngineOptions::new(folder.path()).num_gpu_blocks_override(Some(16)).max_num_seqs(1);
    let policies = PolicyRegistry::default();
    let error = EngineBuilder::new(options, reference::kernels(), &models, &policies).llm().err();
    let Some(Error::Model(error)) = error else { panic!("the tokenizer is refused, not {error:?}") };
    assert!(matches!(*error, quire_models::Error::Tokenizer { .. }), "{error:?}");
}
