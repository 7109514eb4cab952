//! Which kernels there are, and the shared memory that each takes: what the sources in `cuda` say, once more.

use quire_kernels::DType;

use super::tiles::TILE_QUERIES;

/// Head sizes with kernels.
pub(super) const HEAD_DIMS: [usize; 5] = [64, 80, 96, 128, 256];

/// Tokens a block; a power of two, so that places are found without division.
pub(super) const BLOCK_SIZES: std::ops::RangeInclusive<usize> = 8..=64;

/// Query heads that one block of threads takes.
pub(super) const TILE_HEADS: usize = 16;

/// Warps of a decode block, and keys that each takes at a time.
const DECODE_WARPS: usize = 4;
const WARP_KEYS: usize = 16;

/// Most stages of a decode block.
const MAX_STAGES: usize = 6;

/// Keys of a prefill tile.
const TILE_KEYS: usize = 64;

/// Keys and values of one dtype, in heads of one size.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct HeadShape {
    pub(super) head_dim: usize,
    pub(super) kv_dtype: DType,
}

impl HeadShape {
    /// The dtypes of a cache that kernels over activations of `activation` read.
    pub(super) fn kv_dtypes(activation: DType) -> [DType; 3] {
        [activation, DType::F8E4M3, DType::F8E5M2]
    }

    /// Bytes of a head.
    fn head_bytes(self) -> usize {
        self.head_dim * self.kv_dtype.block_bytes()
    }

    /// Shared memory of a decode block on a device whose blocks may have `max_shared_bytes`: as many stages as let
    /// [`decode_blocks`] live together.
    pub(super) fn decode_shared_bytes(self, max_shared_bytes: usize) -> usize {
        let is_fp8 = self.kv_dtype.block_bytes() == 1;
        let is_unpadded = self.head_bytes().is_multiple_of(128) || (is_fp8 && self.head_dim == 80);
        let pitch = if is_unpadded { self.head_bytes() } else { self.head_bytes() + 16 };
        let stage = DECODE_WARPS * 2 * WARP_KEYS * pitch;
        let sum_pitch = if self.head_dim.is_multiple_of(64) { self.head_dim } else { self.head_dim + 8 };
        let sums = if is_fp8 { DECODE_WARPS * 16 * sum_pitch * 4 } else { 0 };
        let rest = sums + DECODE_WARPS * 16 * 8 + 16;
        let stages = (shared_class(max_shared_bytes) / decode_blocks(self.head_dim))
            .saturating_sub(1024 + rest)
            / stage;
        stages.clamp(1, MAX_STAGES) * stage + rest
    }

    /// Shared memory of a prefill block on a device whose blocks may have `max_shared_bytes`.
    pub(super) fn prefill_shared_bytes(self, max_shared_bytes: usize) -> usize {
        let is_fp8 = self.kv_dtype.block_bytes() == 1;
        let pitch = self.head_dim * 2 + 16;
        let raw = if is_fp8 { 2 * TILE_KEYS * self.head_dim } else { 0 };
        let bytes = |stages: usize| (TILE_QUERIES + stages * 2 * TILE_KEYS) * pitch + raw + 3 * 8 * 4;
        let is_deep = !is_fp8 && bytes(2) <= shared_class(max_shared_bytes);
        bytes(if is_deep { 2 } else { 1 })
    }

    /// Shared memory of a prefill block that computes by wgmma, where there is such a kernel.
    pub(super) fn wgmma_shared_bytes(self, activation: DType) -> Option<usize> {
        let has_kernel = self.kv_dtype == activation && matches!(self.head_dim, 64 | 128);
        // Tiles of queries, of this round and the next, of keys and values in two stages; their barriers; the first
        // tile is aligned to 1,024 bytes.
        has_kernel.then(|| (2 + 2 * 2) * 128 * 2 * self.head_dim + 8 * 8 + 1024)
    }

    /// Threads of a prefill block.
    pub(super) fn prefill_threads(self) -> u32 {
        if self.head_dim > 128 { 256 } else { 128 }
    }
}

/// Decode blocks that a multiprocessor should hold: small heads need more of them to have as many bytes under way.
pub(super) const fn decode_blocks(head_dim: usize) -> usize {
    match head_dim {
        ..=64 => MAX_DECODE_BLOCKS,
        65..=128 => 2,
        _ => 1,
    }
}

/// Most decode blocks that a multiprocessor should hold.
pub(super) const MAX_DECODE_BLOCKS: usize = 3;

/// What the kernels of a device are compiled for: the limits of Hopper and data-centre Blackwell, of A100, of the
/// rest.
fn shared_class(max_shared_bytes: usize) -> usize {
    const CLASSES: [usize; 2] = [227 << 10, 163 << 10];
    CLASSES.into_iter().find(|&class| class <= max_shared_bytes).unwrap_or(99 << 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shape(head_dim: usize, kv_dtype: DType) -> HeadShape {
        HeadShape { head_dim, kv_dtype }
    }

    #[test]
    fn every_kernel_fits_into_hopper() {
        for head_dim in HEAD_DIMS {
            for kv_dtype in HeadShape::kv_dtypes(DType::BF16) {
                let shape = shape(head_dim, kv_dtype);
                assert!(shape.decode_shared_bytes(227 << 10) <= 227 << 10, "{shape:?}");
                assert!(shape.prefill_shared_bytes(227 << 10) <= 227 << 10, "{shape:?}");
                assert!(
                    shape.wgmma_shared_bytes(DType::BF16).is_none_or(|bytes| bytes <= 227 << 10),
                    "{shape:?}"
                );
            }
        }
    }

    #[test]
    fn heads_up_to_128_fit_into_every_device() {
        for (head_dim, dtype) in
            [64, 80, 96, 128].into_iter().flat_map(|d| [(d, DType::F16), (d, DType::F8E4M3)])
        {
            let shape = shape(head_dim, dtype);
            assert!(shape.decode_shared_bytes(99 << 10) <= 99 << 10, "{shape:?}");
            assert!(shape.prefill_shared_bytes(99 << 10) <= 99 << 10, "{shape:?}");
        }
    }
}
