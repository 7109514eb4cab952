//! A GPU that is lost in the middle of a run, where `QUIRE_TEST_CUDA` is 1. In a file of its own, since the process loses
//! the device for good.
#![cfg(feature = "cuda")]

#[path = "common/gpu.rs"]
mod gpu;

use std::time::{Duration, Instant};

use quire_engine::{EngineBuilder, EngineOptions, Request, RequestEvent, RequestStream, SamplingParams};
use quire_models::ModelRegistry;
use quire_models::testing::TinyModel;
use quire_scheduler::PolicyRegistry;

/// Nobody waits longer than this for an error.
const PATIENCE: Duration = Duration::from_secs(20);

#[test]
fn requests_of_a_lost_gpu_end_with_its_error_and_later_ones_are_refused() {
    let Some(kernels) = gpu::open(|_| ()) else { return };
    let folder = tempfile::tempdir().expect("a folder for the model");
    let model = folder.path().join("tiny.gguf");
    let tiny =
        TinyModel { hidden_size: 256, head_dim: 64, max_position_embeddings: 8192, ..TinyModel::llama() };
    tiny.write_gguf(&model).expect("the model is written");
    let (models, policies) = (ModelRegistry::default(), PolicyRegistry::default());
    let options = EngineOptions::new(&model).num_gpu_blocks_override(Some(2000));
    let llm = EngineBuilder::new(options, kernels.clone(), &models, &policies).llm().expect("it loads");

    let request = || {
        let params = SamplingParams { ignore_eos: true, ..SamplingParams::greedy(7000) };
        Request::new(vec![5, 6, 7], params)
    };
    let mut streams: Vec<RequestStream> =
        (0..3).map(|_| llm.stream(request()).expect("it is queued")).collect();
    for stream in &mut streams {
        assert!(matches!(stream.blocking_next(), Some(RequestEvent::Delta(_))), "it runs");
    }
    let started = Instant::now();
    quire_kernels_cuda::testing::lose_device(&kernels).expect_err("the device is lost");
    for mut stream in streams {
        let last = std::iter::from_fn(|| stream.blocking_next()).last();
        let Some(RequestEvent::Failed(error)) = last else { panic!("{last:?}") };
        eprintln!("{error}: {:?}", std::error::Error::source(&error));
    }
    let later = llm.stream(request()).map(|mut stream| std::iter::from_fn(|| stream.blocking_next()).last());
    assert!(
        matches!(later, Err(_) | Ok(Some(RequestEvent::Failed(_)))),
        "nothing can run on a lost device: {later:?}"
    );
    drop(llm);
    assert!(started.elapsed() < PATIENCE, "{:?}", started.elapsed());
}
