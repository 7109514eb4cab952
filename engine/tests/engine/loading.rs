//! Starting an engine: what becomes of the makers' sampling defaults.

use std::fs;

use quire_engine::{EngineBuilder, EngineOptions, check_model};
use quire_kernels::reference;
use quire_models::ModelRegistry;
use quire_models::check::CheckOptions;
use quire_models::testing::TinyModel;
use quire_scheduler::PolicyRegistry;

#[test]
fn defaults_that_no_request_may_have_are_noted_one_by_one_and_the_model_loads() {
    let folder = tempfile::tempdir().unwrap();
    TinyModel::llama().write_folder(folder.path()).unwrap();
    let notes = |generation: &str| {
        fs::write(folder.path().join("generation_config.json"), generation).unwrap();
        let report = check_model(folder.path(), &CheckOptions::default(), &ModelRegistry::default());
        assert!(report.is_ok(), "{:?}", report.findings);
        let of_defaults = report.findings.into_iter().filter(|finding| finding.kind == "sampling-default");
        of_defaults.map(|finding| finding.message).collect::<Vec<_>>()
    };
    let sound = r#"{"temperature": 0.7, "top_p": 0.9, "top_k": 40, "min_p": 0.1, "repetition_penalty": 1.1}"#;
    assert_eq!(notes(sound), [""; 0]);
    let found = notes(r#"{"temperature": 100, "top_p": 2, "min_p": 9, "repetition_penalty": 0}"#);
    let said = ["temperature is 100", "top_p is 2", "min_p is 9", "repetition_penalty is 0"];
    assert!(found.iter().zip(said).all(|(message, says)| message.contains(says)), "{found:?}");
    assert_eq!(found.len(), said.len());
    let options = EngineOptions::new(folder.path()).num_gpu_blocks_override(Some(16)).max_num_seqs(1);
    let (models, policies) = (ModelRegistry::default(), PolicyRegistry::default());
    EngineBuilder::new(options, reference::kernels(), &models, &policies).llm().unwrap();
}
