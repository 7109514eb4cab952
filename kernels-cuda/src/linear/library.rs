//! Whether cuBLASLt serves products of many tokens, and by which algorithms.

use crate::KernelTuning;
use crate::cublaslt::{Algo, CublasLt, Shape};
use crate::device::CudaDevice;

/// What serves products of many tokens.
pub(super) struct Library {
    /// None where it cannot be loaded, or where results may not depend on its choices.
    pub(super) library: Option<CublasLt>,
    /// In the dispatch table, hence in its fingerprint. The library's choices are not asked for at start; they follow
    /// from what stands here: its version, the device, and the tuning.
    pub(super) name: String,
    /// Why that.
    pub(super) reason: String,
}

impl Library {
    pub(super) fn open(device: &CudaDevice, tuning: Option<&KernelTuning>) -> Self {
        if device.is_deterministic() {
            if tuning.is_some() {
                tracing::info!(
                    target: "quire::kernels",
                    "[dispatch] the kernel tuning is not used: deterministic results take own kernels"
                );
            }
            return Self::without("--deterministic: one order of each sum".to_owned());
        }
        match CublasLt::open() {
            Ok(library) => Self::with(library, device, tuning),
            Err(error) => {
                tracing::warn!(
                    target: "quire::kernels",
                    "[dispatch] products of many tokens fall back to own kernels, a third of the speed: {error}"
                );
                Self::without(format!("fallback: {error}"))
            }
        }
    }

    fn with(mut library: CublasLt, device: &CudaDevice, tuning: Option<&KernelTuning>) -> Self {
        let here = library.describe(device);
        let (major, minor) = here.compute_capability;
        let mut name = format!("cublaslt-{} on {major}.{minor}, {} SMs", here.cublaslt, here.num_sms);
        let mut reason = "memory-bound below, the library's kernels above".to_owned();
        if let Some(tuning) = tuning.filter(|tuning| is_of(tuning, &here)) {
            let products = tuning.products.iter();
            library.tune(products.map(|tuned| (Shape::from(tuned.product), Algo(tuned.algo))));
            name.push_str(&format!(", tuning {:016x}", tuning.digest()));
            reason.push_str(&format!(", {} of them measured here", tuning.products.len()));
        }
        Self { library: Some(library), name, reason }
    }

    fn without(reason: String) -> Self {
        Self { library: None, name: "mma-m16n8k16 (linear_many)".to_owned(), reason }
    }
}

/// Whether a tuning was made on this device with this library; says so if not.
fn is_of(tuning: &KernelTuning, here: &KernelTuning) -> bool {
    let what = |t: &KernelTuning| {
        let (major, minor) = t.compute_capability;
        format!("{} ({major}.{minor}, {} SMs) with cuBLASLt {}", t.device, t.num_sms, t.cublaslt)
    };
    let (of, here) = (what(tuning), what(here));
    if of != here {
        tracing::warn!(
            target: "quire::kernels",
            "[dispatch] the kernel tuning is ignored: it was made on {of}, this is {here}; run `quire tune-kernels` here"
        );
    }
    of == here
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tuning_is_for_one_device_and_one_version() {
        let here = || KernelTuning::new("NVIDIA H200".to_owned(), (9, 0), 132, 130_100);
        assert!(is_of(&here(), &here()));
        let others = [
            KernelTuning { cublaslt: 130_200, ..here() },
            KernelTuning { num_sms: 114, ..here() },
            KernelTuning { device: "NVIDIA H100".to_owned(), ..here() },
        ];
        assert!(others.iter().all(|other| !is_of(other, &here())));
    }
}
