//! What a step's plan looks like in memory: one tensor of integers, whose size depends on the shapes alone.
//!
//! ```text
//! segments [max_segments, 8] | tiles [max_tiles, 8] | starts of runs [num_runs + 1] | counters [max_parts, heads]
//! ```

use std::ops::Range;

use quire_kernels::{KvLayout, ShapeKey, StepRows};

use super::clusters::{self, CLUSTER_BLOCKS};
use super::runs::{self, Runs, Segment};
use super::shape::{HEAD_DIMS, MAX_DECODE_BLOCKS, TILE_HEADS, decode_blocks};
use super::tiles::{self, QueryTile};

/// Rows of at most so many tokens are computed token by token, split over the sequence.
pub(super) const MAX_DECODE_TOKENS: usize = 4;

/// Most key and value heads that memory is planned for on devices with fewer slots.
const MAX_KV_HEADS: usize = 128;

/// Integers of a segment and of a tile.
const ENTRY: usize = 8;

/// How tokens are shared out to blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Cut {
    /// A block each.
    Uncut,
    /// Runs of one length.
    Balanced,
    /// Clusters of blocks: for few tokens.
    Clusters,
}

/// How the steps of one shape are cut.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct PlanShape {
    pub(super) cut: Cut,
    pub(super) num_runs: usize,
    pub(super) max_tiles: usize,
    /// Parts of tokens that there may be.
    pub(super) max_parts: usize,
    max_segments: usize,
    /// Counters of a part.
    num_counters: usize,
}

/// What the planning of all steps has in common.
#[derive(Clone, Copy, Debug)]
pub(super) struct Planner {
    /// Multiprocessors.
    pub(super) num_sms: usize,
    /// Whether a token's result may depend on its position alone.
    pub(super) is_deterministic: bool,
    /// Whether the device has clusters of blocks.
    pub(super) has_clusters: bool,
}

impl Planner {
    /// Clusters that certainly run at once: the multiprocessors come in groups that are no whole number of clusters,
    /// and one cluster that has to wait takes as long again as all the others.
    fn max_clusters(&self) -> usize {
        2 * self.num_sms / CLUSTER_BLOCKS * 7 / 8
    }

    /// Most decode blocks that run at once.
    pub(super) fn max_slots(&self) -> usize {
        self.num_sms * MAX_DECODE_BLOCKS
    }

    /// The shape of a plan; `max_head_tiles` counts the tiles of query heads of a key and value head.
    pub(super) fn shape(&self, key: ShapeKey, layout: &KvLayout, max_head_tiles: usize) -> PlanShape {
        let num_kv_heads = layout.num_kv_heads;
        let has_tiles = key.max_query_len > MAX_DECODE_TOKENS && !self.is_deterministic;
        let max_tiles = if has_tiles { tiles::max_tiles(key.num_tokens, key.num_rows) } else { 0 };
        let max_heads = num_kv_heads * max_head_tiles;
        let num_clusters = self.max_clusters() / num_kv_heads;
        let has_few_tokens = !has_tiles && key.num_tokens <= num_clusters;
        if self.is_deterministic {
            let num_runs = key.num_tokens;
            PlanShape {
                cut: Cut::Uncut,
                num_runs,
                max_tiles,
                max_parts: 0,
                max_segments: num_runs,
                num_counters: 0,
            }
        } else if self.has_clusters && has_few_tokens {
            PlanShape {
                cut: Cut::Clusters,
                num_runs: num_clusters * CLUSTER_BLOCKS,
                max_tiles,
                max_parts: num_clusters,
                max_segments: num_clusters * CLUSTER_BLOCKS,
                num_counters: max_heads * CLUSTER_BLOCKS,
            }
        } else {
            let num_slots = self.num_sms * decode_blocks(layout.head_dim);
            let num_runs = (num_slots / num_kv_heads).max(1);
            let max_decoded = key.num_tokens.min(key.num_rows * MAX_DECODE_TOKENS);
            PlanShape {
                cut: Cut::Balanced,
                num_runs,
                max_tiles,
                max_parts: runs::max_parts(num_runs),
                max_segments: runs::max_segments(max_decoded, num_runs),
                num_counters: max_heads,
            }
        }
    }

    /// Most bytes of the parts of cut tokens in a layer, whatever the heads.
    pub(super) fn max_parts_bytes(&self, max_head_tiles: usize) -> usize {
        if self.is_deterministic {
            return 0;
        }
        let bytes = |&head_dim: &usize| {
            let num_slots = self.num_sms * decode_blocks(head_dim);
            parts_bytes(runs::max_parts(num_slots.max(MAX_KV_HEADS)) * max_head_tiles, head_dim)
        };
        HEAD_DIMS.iter().map(bytes).max().unwrap_or(0)
    }

    /// Most integers of a plan for so many tokens and rows, whatever the heads.
    pub(super) fn max_len(&self, num_tokens: usize, num_rows: usize, max_head_tiles: usize) -> usize {
        if self.is_deterministic {
            return num_tokens * (ENTRY + 1) + 1;
        }
        let max_decoded = num_tokens.min(num_rows * MAX_DECODE_TOKENS);
        let entries =
            runs::max_segments(max_decoded, self.max_slots()) + tiles::max_tiles(num_tokens, num_rows);
        // Runs times heads are at most the slots, but for a run of more heads than slots.
        let num_counters = runs::max_parts(self.max_slots().max(MAX_KV_HEADS)) * max_head_tiles;
        entries * ENTRY + self.max_slots() + 1 + num_counters
    }
}

/// Bytes of so many parts of a tile of query heads: results, and their maxima and sums.
fn parts_bytes(num_parts: usize, head_dim: usize) -> usize {
    num_parts * TILE_HEADS * (head_dim + 2) * 4
}

impl PlanShape {
    /// Integers of the plan.
    pub(super) fn len(&self) -> usize {
        self.counters().end
    }

    pub(super) fn segments(&self) -> Range<usize> {
        0..self.max_segments * ENTRY
    }

    pub(super) fn tiles(&self) -> Range<usize> {
        let start = self.segments().end;
        start..start + self.max_tiles * ENTRY
    }

    pub(super) fn starts(&self) -> Range<usize> {
        let start = self.tiles().end;
        start..start + self.num_runs + 1
    }

    pub(super) fn counters(&self) -> Range<usize> {
        let start = self.starts().end;
        start..start + self.max_parts * self.num_counters
    }

    /// The plan of a step.
    pub(super) fn fill(&self, rows: &StepRows) -> Vec<i32> {
        let mut tokens: Vec<Segment> = Vec::with_capacity(rows.num_rows());
        let mut tiles: Vec<QueryTile> = Vec::new();
        for row in 0..rows.num_rows() {
            if self.cut == Cut::Uncut || rows.query_len(row) <= MAX_DECODE_TOKENS {
                tokens.extend(runs::tokens(rows, row));
            } else {
                tiles.extend(tiles::tiles(rows, row));
            }
        }
        tiles::longest_first(&mut tiles);
        let Runs { segments, starts, .. } = match self.cut {
            Cut::Uncut => runs::uncut(tokens),
            Cut::Balanced => runs::balanced(&tokens, self.num_runs),
            Cut::Clusters => clusters::shared_out(&tokens, self.max_parts),
        };
        let mut plan = vec![0; self.len()];
        put(&mut plan, self.segments(), bytemuck::cast_slice(&segments));
        put(&mut plan, self.tiles(), bytemuck::cast_slice(&tiles));
        put(&mut plan, self.starts(), &starts);
        plan
    }
}

fn put(plan: &mut [i32], place: Range<usize>, values: &[i32]) {
    plan[place][..values.len()].copy_from_slice(values);
}

#[cfg(test)]
mod tests {
    use quire_kernels::DType;

    use super::*;

    const PLANNER: Planner = Planner { num_sms: 132, is_deterministic: false, has_clusters: false };

    fn layout(num_kv_heads: usize, head_dim: usize) -> KvLayout {
        let (block_size, dtype) = (16, DType::BF16);
        let block_bytes = 2 * num_kv_heads * block_size * head_dim * 2;
        KvLayout { block_bytes, block_size, num_kv_heads, head_dim, dtype }
    }

    fn step(query_lens: &[i32], cached: i32) -> (ShapeKey, StepRows) {
        let mut rows = StepRows { query_start: vec![0], seq_lens: Vec::new() };
        for &len in query_lens {
            rows.query_start.push(rows.num_tokens() as i32 + len);
            rows.seq_lens.push(cached + len);
        }
        let key = ShapeKey {
            num_tokens: rows.num_tokens(),
            num_rows: rows.num_rows(),
            max_query_len: rows.max_query_len(),
            num_logits: 0,
        };
        (key, rows)
    }

    fn check(planner: Planner, query_lens: &[i32], cached: i32) -> (PlanShape, Vec<i32>) {
        let (key, rows) = step(query_lens, cached);
        let shape = planner.shape(key, &layout(4, 128), 2);
        let plan = shape.fill(&rows);
        assert_eq!(plan.len(), shape.len());
        assert!(plan.len() <= planner.max_len(key.num_tokens, key.num_rows, 2), "{}", plan.len());
        assert!(plan[shape.counters()].iter().all(|&counter| counter == 0));
        let segments: Vec<Segment> = bytemuck::pod_collect_to_vec(&plan[shape.segments()]);
        let tiles: Vec<QueryTile> = bytemuck::pod_collect_to_vec(&plan[shape.tiles()]);
        let mut seen = vec![0; key.num_tokens];
        let last = plan[shape.starts()][shape.num_runs] as usize;
        for segment in segments[..last].iter().filter(|segment| segment.part() == 0 && segment.first_key == 0)
        {
            seen[segment.token as usize] = 1;
        }
        for tile in tiles {
            (tile.token..tile.token + tile.num_tokens).for_each(|token| seen[token as usize] += 1);
        }
        assert!(seen.iter().all(|&n| n == 1), "every token once: {seen:?}");
        (shape, plan)
    }

    #[test]
    fn every_token_is_computed_once() {
        for cached in [0, 50, 3000] {
            check(PLANNER, &[], cached);
            check(PLANNER, &[1], cached);
            check(PLANNER, &[1; 256], cached);
            check(PLANNER, &[1, 700, 4, 5, 1, 128], cached);
            check(Planner { is_deterministic: true, ..PLANNER }, &[1, 700, 4, 5], cached);
            check(Planner { has_clusters: true, ..PLANNER }, &[1, 4, 2], cached);
        }
    }

    #[test]
    fn the_size_depends_on_the_shapes_alone() {
        let short = check(PLANNER, &[1; 9], 1);
        let long = check(PLANNER, &[1; 9], 9000);
        assert_eq!((short.0, short.1.len()), (long.0, long.1.len()));
    }

    #[test]
    fn memory_is_planned_for_all_heads() {
        for (num_sms, head_dim) in [132, 28].into_iter().flat_map(|sms| HEAD_DIMS.map(|dim| (sms, dim))) {
            for (has_clusters, num_kv_heads) in [(false, 1), (false, 8), (false, 128), (true, 1), (true, 8)] {
                let planner = Planner { num_sms, has_clusters, is_deterministic: false };
                let (key, _) = step(&[1, 1], 0);
                let shape = planner.shape(key, &layout(num_kv_heads, head_dim), 4);
                assert!(shape.len() <= planner.max_len(2, 2, 4), "{num_kv_heads} heads of {head_dim}");
                let parts = parts_bytes(shape.max_parts * num_kv_heads * 4, head_dim);
                assert!(parts <= planner.max_parts_bytes(4), "{num_kv_heads} heads of {head_dim}");
            }
        }
    }

    #[test]
    fn few_tokens_go_to_clusters() {
        let planner = Planner { has_clusters: true, ..PLANNER };
        let cut = |query_lens: &[i32]| check(planner, query_lens, 70).0.cut;
        assert_eq!(cut(&[1; 7]), Cut::Clusters);
        assert_eq!(cut(&[1; 8]), Cut::Balanced);
        assert_eq!(cut(&[5]), Cut::Balanced, "and the five are a tile");
    }

    #[test]
    fn decode_steps_have_no_tiles() {
        assert_eq!(check(PLANNER, &[1; 8], 5).0.max_tiles, 0);
    }
}
