//! Which instructions the kernels use, decided once at run time.

use std::fmt;

/// An instruction set that kernels are compiled for. Every one gives the same results, bit for bit.
///
/// Ordered from the plainest to the fastest.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[non_exhaustive]
pub enum Isa {
    /// Plain Rust: what the target guarantees.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// AVX-512 F, BW, VL and VNNI.
    Avx512,
}

impl Isa {
    /// Every instruction set, the plainest first.
    pub const ALL: [Self; 3] = [Self::Scalar, Self::Avx2, Self::Avx512];

    /// The best one of this machine.
    pub fn best() -> Self {
        *Self::available().last().expect("the scalar kernels run everywhere")
    }

    /// Those that this machine can run, the plainest first.
    pub fn available() -> Vec<Self> {
        Self::ALL.into_iter().filter(|isa| isa.is_available()).collect()
    }

    /// Whether this machine can run it.
    pub fn is_available(self) -> bool {
        match self {
            Self::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Self::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Self::Avx512 => {
                Self::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(not(target_arch = "x86_64"))]
            _ => false,
        }
    }

    /// Why it is the one in use, for the dispatch table.
    pub(crate) fn reason(self) -> &'static str {
        match self {
            isa if isa != Self::best() => "it was asked for in place of this machine's best",
            Self::Scalar => "fallback: this machine has no instruction set with kernels of its own",
            Self::Avx2 => "this machine has AVX2, FMA and F16C, but not AVX-512 with VNNI",
            Self::Avx512 => "this machine has AVX-512 with VNNI",
        }
    }

    /// Its name in the dispatch table.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Scalar => "scalar",
            Self::Avx2 => "avx2",
            Self::Avx512 => "avx512-vnni",
        }
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_scalar_kernels_are_always_there_and_the_best_one_is_available() {
        assert_eq!(Isa::available()[0], Isa::Scalar);
        assert!(Isa::best().is_available());
    }
}
