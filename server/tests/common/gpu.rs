//! The GPU of tests that need one.

use quire::BackendOptions;
use quire_kernels::Kernels;

/// The first GPU, where `QUIRE_TEST_CUDA` is 1 and so promises one; says that the test is skipped where not.
pub(crate) fn open(set: impl FnOnce(&mut BackendOptions)) -> Option<Kernels> {
    if std::env::var_os("QUIRE_TEST_CUDA").is_none_or(|value| value != "1") {
        eprintln!("skipped: QUIRE_TEST_CUDA is not 1");
        return None;
    }
    let mut options = BackendOptions::default();
    set(&mut options);
    Some(quire::cuda_kernels(&options).expect("QUIRE_TEST_CUDA promises a GPU"))
}
