//! How the queries of long chunks are cut into tiles.

use bytemuck::{Pod, Zeroable};
use quire_kernels::StepRows;

/// Queries (tokens times heads) of a tile.
pub(super) const TILE_QUERIES: usize = 128;

/// Consecutive query tokens of one row: `QueryTile` of `attention_prefill.cuh`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(16))]
pub(super) struct QueryTile {
    pub(super) row: i32,
    pub(super) token: i32,
    pub(super) num_tokens: i32,
    pub(super) position: i32,
    pub(super) log2_span: i32,
    pub(super) is_padding: i32,
    pub(super) unused: [i32; 2],
}

/// Most tiles of so many tokens in so many rows.
pub(super) const fn max_tiles(num_tokens: usize, num_rows: usize) -> usize {
    let by_tokens = num_tokens / TILE_QUERIES + num_rows;
    if by_tokens < num_tokens { by_tokens } else { num_tokens }
}

/// The tiles of a row.
pub(super) fn tiles(rows: &StepRows, row: usize) -> impl Iterator<Item = QueryTile> {
    let (start, len, seen) = (rows.query_start[row] as usize, rows.query_len(row), rows.seq_lens[row]);
    (0..len).step_by(TILE_QUERIES).map(move |i| {
        let num_tokens = (len - i).min(TILE_QUERIES);
        QueryTile {
            row: row as i32,
            token: (start + i) as i32,
            num_tokens: num_tokens as i32,
            position: if seen > 0 { seen - len as i32 + i as i32 } else { 0 },
            log2_span: num_tokens.next_power_of_two().trailing_zeros() as i32,
            is_padding: i32::from(seen == 0),
            unused: [0; 2],
        }
    })
}

/// Puts the tiles that see the most keys first: blocks start in this order, and the last to end should be short.
pub(super) fn longest_first(tiles: &mut [QueryTile]) {
    tiles.sort_by_key(|tile| std::cmp::Reverse((tile.position + tile.num_tokens) / 64));
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(query_lens: &[usize], cached: i32) -> Vec<QueryTile> {
        let mut rows = StepRows { query_start: vec![0], seq_lens: Vec::new() };
        for &len in query_lens {
            rows.query_start.push(rows.num_tokens() as i32 + len as i32);
            rows.seq_lens.push(cached + len as i32);
        }
        let all: Vec<_> = (0..query_lens.len()).flat_map(|row| tiles(&rows, row)).collect();
        assert!(all.len() <= max_tiles(rows.num_tokens(), rows.num_rows()));
        let mut next = 0;
        for tile in &all {
            assert_eq!(tile.token, next);
            assert!(tile.num_tokens <= 1 << tile.log2_span && 1 << tile.log2_span <= TILE_QUERIES as i32);
            assert!(2 * tile.num_tokens > 1 << tile.log2_span, "no larger span than needed");
            let row = tile.row as usize;
            assert_eq!(tile.position, cached + tile.token - rows.query_start[row]);
            next += tile.num_tokens;
        }
        assert_eq!(next as usize, rows.num_tokens());
        all
    }

    #[test]
    fn every_token_is_in_one_tile() {
        check(&[], 0);
        check(&[1, 2, 3, 127, 128, 129, 1000], 0);
        check(&[1, 16, 17, 64, 65], 333);
    }

    #[test]
    fn the_longest_come_first() {
        let mut all = check(&[300, 1000, 5], 0);
        longest_first(&mut all);
        let ends: Vec<i32> = all.iter().map(|tile| (tile.position + tile.num_tokens) / 64).collect();
        assert!(ends.is_sorted_by(|a, b| a >= b), "{ends:?}");
    }

    #[test]
    fn a_padded_row_is_marked() {
        let rows = StepRows { query_start: vec![0, 2], seq_lens: vec![0] };
        let all: Vec<_> = tiles(&rows, 0).collect();
        assert_eq!((all.len(), all[0].is_padding, all[0].position), (1, 1, 0));
    }
}
