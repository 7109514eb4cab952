//! Algorithms of the library, and its answers to which one to take.

use std::ffi::c_int;
use std::fmt;

use super::functions::Functions;

const ALGO_ID: c_int = 0;
const ALGO_TILE: c_int = 1;
const ALGO_SPLIT_K: c_int = 2;
const ALGO_STAGES: c_int = 6;

/// `cublasLtMatmulAlgo_t`: valid for one version of the library, on one kind of device.
#[repr(C)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Algo(pub(crate) [u64; 8]);

/// `cublasLtMatmulHeuristicResult_t`.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Answer {
    pub(super) algo: Algo,
    pub(super) workspace_bytes: usize,
    pub(super) state: c_int,
    pub(super) waves: f32,
    pub(super) reserved: [c_int; 4],
}

impl Answer {
    /// Room for one.
    pub(super) const BLANK: Self =
        Self { algo: Algo([0; 8]), workspace_bytes: 0, state: 0, waves: 0.0, reserved: [0; 4] };

    /// The algorithm, where it can be used with so much memory.
    pub(super) fn algorithm(&self, max_workspace_bytes: usize) -> Option<Algorithm> {
        let is_usable = self.state == 0 && self.workspace_bytes <= max_workspace_bytes;
        is_usable.then_some(Algorithm { algo: self.algo, workspace_bytes: self.workspace_bytes })
    }
}

/// An algorithm that can be used.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Algorithm {
    pub(crate) algo: Algo,
    /// Device memory that it takes.
    pub(crate) workspace_bytes: usize,
}

/// What it is, as far as the library says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct AlgorithmName {
    id: c_int,
    tile: c_int,
    stages: c_int,
    split_k: c_int,
}

impl AlgorithmName {
    pub(super) fn of(functions: &Functions, algo: &Algo) -> Self {
        let attribute = |attribute: c_int| {
            let (mut value, mut written): (c_int, usize) = (-1, 0);
            // SAFETY: at most the four bytes of `value` are written.
            unsafe {
                (functions.algo_get)(
                    algo,
                    attribute,
                    (&raw mut value).cast(),
                    size_of::<c_int>(),
                    &mut written,
                )
            };
            value
        };
        Self {
            id: attribute(ALGO_ID),
            tile: attribute(ALGO_TILE),
            stages: attribute(ALGO_STAGES),
            split_k: attribute(ALGO_SPLIT_K),
        }
    }
}

impl fmt::Display for AlgorithmName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { id, tile, stages, split_k } = self;
        write!(f, "algorithm {id}, tile {tile}, stages {stages}, split {split_k}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structs_are_as_large_as_the_librarys() {
        assert_eq!((size_of::<Algo>(), size_of::<Answer>()), (64, 96));
    }
}
