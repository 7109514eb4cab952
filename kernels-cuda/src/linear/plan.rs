//! Which kernel multiplies how many tokens, and how a launch is cut. Everything here depends on shapes and the device
//! alone. The rules follow measurements on an H200, in `docs/kernels/linear.md`.

use super::format::Format;
use super::kernel_set::{FEW_SHARED_BYTES, TOKEN_TILES, VARIANTS, Variant};

/// Most tokens that the kernels for few tokens take at once.
pub(super) const MAX_FEW_TOKENS: usize = TOKEN_TILES[TOKEN_TILES.len() - 1];

/// Scratch for dequantized rows: the second cache holds a slab until it is multiplied.
pub(super) const SLAB_BYTES: usize = 24 << 20;

/// Columns that a warp takes at a time.
const STEP_COLUMNS: usize = 64;

/// Rows that a warp owns at least.
const TILE_ROWS: usize = 16;

/// What launches are fitted to.
#[derive(Clone, Copy, Debug)]
pub(super) struct Machine {
    pub(super) num_sms: usize,
    /// That a block may have.
    pub(super) shared_bytes: usize,
}

/// How the kernels for few tokens are launched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct FewPlan {
    /// Rows that a warp owns.
    rows: usize,
    /// Warps that share the columns out.
    slices: usize,
    /// Shared memory that a warp takes.
    ring_bytes: usize,
}

impl FewPlan {
    /// For dense weights: the kernel and its launch.
    pub(super) fn dense(machine: Machine, [rows, columns]: [usize; 2], num_tokens: usize) -> (Variant, Self) {
        let slices = dense_slices(machine, [rows, columns]);
        let tiles = rows.div_ceil(TILE_ROWS);
        let wanted = match token_tile(num_tokens) {
            // Many short-lived blocks keep memory busy together; a few need more in flight each.
            0 if slices == 16 && tiles >= machine.num_sms || tiles >= 8 * machine.num_sms => (16, 4),
            0 => (16, 8),
            // The input is read once for all rows of a warp: more rows, less traffic from the second cache.
            _ if tiles >= machine.num_sms => (32, 8),
            _ => (16, 8),
        };
        let tokens = TOKEN_TILES[token_tile(num_tokens)];
        let variant = Variant { tokens, rows: wanted.0, ring: wanted.1 };
        debug_assert!(VARIANTS.contains(&variant), "{variant:?}");
        (variant, Self { rows: variant.rows, slices, ring_bytes: variant.ring << 10 })
    }

    /// For records, a warp owns the rows of one: the index of the kernel's token tile, and its launch.
    pub(super) fn records(
        machine: Machine,
        format: Format,
        [rows, columns]: [usize; 2],
        num_tokens: usize,
    ) -> (usize, Self) {
        let ring_bytes = format.ring_bytes();
        let tiles = rows.div_ceil(TILE_ROWS);
        let wanted = match tiles {
            _ if tiles >= 8 * machine.num_sms => 4,
            _ if tiles >= 2 * machine.num_sms => 8,
            _ => 16,
        };
        let slices = fit(machine, wanted, columns, ring_bytes);
        (token_tile(num_tokens), Self { rows: TILE_ROWS, slices, ring_bytes })
    }

    pub(super) fn num_blocks(&self, rows: usize) -> usize {
        rows.div_ceil(self.rows)
    }

    pub(super) fn threads(&self) -> usize {
        32 * self.slices
    }

    pub(super) fn shared_bytes(&self) -> usize {
        self.slices * self.ring_bytes
    }
}

/// Warps that the columns of a dense weight are shared out to: enough of them to fill the device, few enough that a block
/// is worth its start. It decides the order of a sum, so it hangs on the weight's shape and the device alone, never on
/// the tokens.
pub(super) fn dense_slices(machine: Machine, [rows, columns]: [usize; 2]) -> usize {
    let wanted = if rows.div_ceil(TILE_ROWS) >= 2 * machine.num_sms { 8 } else { 16 };
    fit(machine, wanted, columns, 8 << 10)
}

/// At most `wanted` warps, a power of two, that each have columns and room.
fn fit(machine: Machine, wanted: usize, columns: usize, ring_bytes: usize) -> usize {
    let room = machine.shared_bytes.min(FEW_SHARED_BYTES) / ring_bytes;
    let most = wanted.min(room).min(columns.div_ceil(STEP_COLUMNS)).max(1);
    1 << most.ilog2()
}

/// Most tokens for which dense weights take the kernels for few. The library's kernels take the same time for 1 to 64
/// tokens. Ours read the tokens once for every 16 or 32 rows, so they grow with tokens and rows, but they start while the
/// kernel before still runs, which counts where there is little to read.
pub(super) fn max_few_tokens([rows, columns]: [usize; 2]) -> usize {
    match rows {
        0..=4096 if rows * columns < 16_000_000 => 32,
        0..100_000 => 16,
        _ => 8,
    }
}

/// The index of the smallest tile that holds so many tokens.
fn token_tile(num_tokens: usize) -> usize {
    TOKEN_TILES.iter().position(|&tile| num_tokens <= tile).expect("few tokens")
}

/// Rows of a quantized weight whose dense form fits the slab; a whole number of row tiles.
pub(super) fn slab_rows(columns: usize) -> usize {
    (SLAB_BYTES / columns.saturating_mul(2).max(1) / TILE_ROWS * TILE_ROWS).max(TILE_ROWS)
}

#[cfg(test)]
mod tests {
    use super::*;

    const H200: Machine = Machine { num_sms: 132, shared_bytes: 227 << 10 };
    const SMALL: Machine = Machine { num_sms: 46, shared_bytes: 99 << 10 };

    const SHAPES: [[usize; 2]; 7] =
        [[1, 64], [4608, 3584], [37888, 3584], [3584, 18944], [151_936, 896], [896, 4864], [896, 896]];

    #[test]
    fn launches_stay_within_what_the_kernels_and_the_device_take() {
        for machine in [H200, SMALL] {
            for shape in SHAPES {
                for num_tokens in 1..=MAX_FEW_TOKENS {
                    let (variant, dense) = FewPlan::dense(machine, shape, num_tokens);
                    assert!(variant.tokens >= num_tokens && VARIANTS.contains(&variant), "{variant:?}");
                    check(machine, shape, dense);
                    for format in Format::ALL {
                        let (tile, records) = FewPlan::records(machine, format, shape, num_tokens);
                        assert!(TOKEN_TILES[tile] >= num_tokens);
                        check(machine, shape, records);
                    }
                }
            }
        }
    }

    fn check(machine: Machine, [rows, columns]: [usize; 2], plan: FewPlan) {
        assert!((32..=512).contains(&plan.threads()), "{plan:?}");
        assert!(plan.shared_bytes() <= machine.shared_bytes.min(FEW_SHARED_BYTES), "{plan:?}");
        assert!(plan.num_blocks(rows) * plan.rows >= rows, "{plan:?}");
        assert!(plan.slices <= columns.div_ceil(STEP_COLUMNS), "{plan:?}");
    }

    #[test]
    fn the_order_of_a_sum_does_not_depend_on_the_tokens() {
        for machine in [H200, SMALL] {
            for shape in SHAPES {
                let of = |num_tokens| FewPlan::dense(machine, shape, num_tokens).1.slices;
                assert!((1..=MAX_FEW_TOKENS).all(|n| of(n) == dense_slices(machine, shape)));
                for format in Format::ALL {
                    let of = |num_tokens| FewPlan::records(machine, format, shape, num_tokens).1.slices;
                    assert!((1..=MAX_FEW_TOKENS).all(|n| of(n) == of(1)));
                }
            }
        }
    }

    #[test]
    fn a_slab_holds_whole_tiles() {
        assert_eq!(slab_rows(3584) % TILE_ROWS, 0);
        assert!(slab_rows(3584) * 3584 * 2 <= SLAB_BYTES);
        assert_eq!(slab_rows(usize::MAX), TILE_ROWS);
    }
}
