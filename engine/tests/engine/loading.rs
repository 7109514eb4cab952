//! Starting an engine: weights and texts are read at the same time.

use std::fs;

use quire_engine::{EngineBuilder, EngineOptions, Error, check_model};
use quire_kernels::reference;
use quire_models::check::CheckOptions;
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

#[test]
fn defaults_that_no_request_can_be_sampled_with_are_told_by_a_check_one_by_one() {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::llama().write_folder(folder.path()).unwrap();
    let problems = |generation: &str| {
        fs::write(folder.path().join("generation_config.json"), generation).unwrap();
        let report = check_model(folder.path(), &CheckOptions::default(), &ModelRegistry::default());
        report.problems().map(|problem| problem.message.clone()).collect::<Vec<_>>()
    };
    let found = problems(r#"{"temperature": -1, "top_p": 2, "min_p": 9, "repetition_penalty": 0}"#);
    for (message, says) in
        found.iter().zip(["temperature is -1", "top_p is 2", "min_p is 9", "repetition_penalty is 0"])
    {
        assert!(message.contains(says) && message.contains("--generation-config none"), "{message}");
    }
    assert_eq!(found.len(), 4, "{found:?}");
    let sound = r#"{"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "repetition_penalty": 1.1}"#;
    assert_eq!(problems(sound), [""; 0]);
}
