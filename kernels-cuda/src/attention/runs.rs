//! How the keys of single query tokens are shared out to blocks that run at once.

use bytemuck::{Pod, Zeroable};
use quire_kernels::StepRows;

/// Keys that a block takes at a time.
pub(super) const UNIT_KEYS: usize = 64;

/// What starting and merging a segment costs, in units of keys. Of 0 to 3 tried, the best at every size.
const SEGMENT_COST: usize = 3;

/// A range of keys of one query token: `Segment` of `attention_decode.cuh`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Pod, Zeroable)]
#[repr(C, align(16))]
pub(super) struct Segment {
    pub(super) row: i32,
    pub(super) token: i32,
    pub(super) first_key: i32,
    pub(super) end_key: i32,
    pub(super) position: i32,
    /// The first key that the step writes.
    pub(super) first_new: i32,
    /// Number of the token's first part among all parts.
    pub(super) first_part: i32,
    /// Number of this part among the token's; how many those are from bit 16 on.
    parts: i32,
}

impl Segment {
    /// All keys of a query token.
    fn whole(row: usize, token: i32, position: i32, first_new: i32, end_key: i32) -> Self {
        let row = row as i32;
        Self { row, token, first_key: 0, end_key, position, first_new, first_part: 0, parts: 0 }
            .numbered(0, 0, 1)
    }

    /// As part `part` of `num_parts`, which are numbered from `first_part` on among all parts.
    pub(super) fn numbered(self, first_part: usize, part: usize, num_parts: usize) -> Self {
        Self { first_part: first_part as i32, parts: (part | num_parts << 16) as i32, ..self }
    }

    /// The part's number.
    #[cfg(test)]
    pub(super) fn part(&self) -> usize {
        (self.parts & 0xffff) as usize
    }

    /// How many parts the token has.
    #[cfg(test)]
    pub(super) fn num_parts(&self) -> usize {
        (self.parts >> 16) as usize
    }

    /// Units of keys; a padded row has one without keys.
    pub(super) fn num_units(&self) -> usize {
        (self.end_key as usize).div_ceil(UNIT_KEYS).max(1)
    }

    /// The units `first..end` of it.
    pub(super) fn units(&self, first: usize, end: usize) -> Self {
        let first_key = (first * UNIT_KEYS) as i32;
        Self { first_key, end_key: self.end_key.min((end * UNIT_KEYS) as i32), ..*self }
    }
}

/// Segments in the order of the runs that execute them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Runs {
    pub(super) segments: Vec<Segment>,
    /// Where each run starts among the segments, and where the last one ends.
    pub(super) starts: Vec<i32>,
    pub(super) num_parts: usize,
}

/// Most parts of rows that `num_runs` runs make: each end of a run cuts one row.
pub(super) const fn max_parts(num_runs: usize) -> usize {
    2 * num_runs
}

/// Most segments of so many query tokens.
pub(super) const fn max_segments(num_tokens: usize, num_runs: usize) -> usize {
    num_tokens + num_runs
}

/// The query tokens of a row that has few of them, each as an uncut segment.
pub(super) fn tokens(rows: &StepRows, row: usize) -> impl Iterator<Item = Segment> {
    let (start, len, seen) = (rows.query_start[row], rows.query_len(row) as i32, rows.seq_lens[row]);
    let first_new = (seen - len).max(0);
    (0..len).map(move |i| match seen {
        0 => Segment::whole(row, start + i, 0, 0, 0),
        _ => Segment::whole(row, start + i, first_new + i, first_new, first_new + i + 1),
    })
}

/// One run for each token, nothing cut: what a token's result is made of then depends on its position alone.
pub(super) fn uncut(tokens: Vec<Segment>) -> Runs {
    let starts = (0..=tokens.len() as i32).collect();
    Runs { segments: tokens, starts, num_parts: 0 }
}

/// Shares the tokens out to `num_runs` runs of about the same length, cutting them where a run is full.
pub(super) fn balanced(tokens: &[Segment], num_runs: usize) -> Runs {
    let total: usize = tokens.iter().map(|token| token.num_units() + SEGMENT_COST).sum();
    let mut budget = total.div_ceil(num_runs.max(1)).max(1 + SEGMENT_COST);
    loop {
        let mut runs = cut(tokens, budget);
        let used = runs.starts.len() - 1;
        if used <= num_runs {
            let end = runs.segments.len() as i32;
            runs.starts.resize(num_runs + 1, end);
            return runs;
        }
        budget += (budget / 32).max(1);
    }
}

fn cut(tokens: &[Segment], budget: usize) -> Runs {
    let mut runs = Runs { starts: vec![0], ..Runs::default() };
    let mut left = budget;
    for token in tokens {
        let first_segment = runs.segments.len();
        let (mut first, end) = (0, token.num_units());
        while first < end {
            let is_started = runs.segments.len() as i32 > *runs.starts.last().expect("starts with one");
            if left <= SEGMENT_COST && is_started {
                runs.starts.push(runs.segments.len() as i32);
                left = budget;
            }
            let taken = left.saturating_sub(SEGMENT_COST).clamp(1, end - first);
            runs.segments.push(token.units(first, first + taken));
            first += taken;
            left = left.saturating_sub(taken + SEGMENT_COST);
        }
        runs.number_parts(first_segment);
    }
    runs.starts.push(runs.segments.len() as i32);
    runs
}

impl Runs {
    /// Numbers the parts of the token whose segments start at `first_segment`.
    fn number_parts(&mut self, first_segment: usize) {
        let parts = &mut self.segments[first_segment..];
        let num_parts = parts.len();
        if num_parts == 1 {
            return;
        }
        for (i, part) in parts.iter_mut().enumerate() {
            *part = part.numbered(self.num_parts, i, num_parts);
        }
        self.num_parts += num_parts;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decode_rows(seq_lens: &[i32]) -> StepRows {
        StepRows { query_start: (0..=seq_lens.len() as i32).collect(), seq_lens: seq_lens.to_vec() }
    }

    fn all_tokens(rows: &StepRows) -> Vec<Segment> {
        (0..rows.num_rows()).flat_map(|row| tokens(rows, row)).collect()
    }

    fn check(seq_lens: &[i32], num_runs: usize) -> Runs {
        let rows = decode_rows(seq_lens);
        let tokens = all_tokens(&rows);
        let runs = balanced(&tokens, num_runs);
        assert_eq!(runs.starts.len(), num_runs + 1);
        assert!(runs.starts.is_sorted());
        assert_eq!(*runs.starts.last().unwrap() as usize, runs.segments.len());
        assert!(runs.segments.len() <= max_segments(tokens.len(), num_runs));
        assert!(runs.num_parts <= max_parts(num_runs), "{} parts", runs.num_parts);
        for (token, &len) in seq_lens.iter().enumerate() {
            let parts: Vec<_> = runs.segments.iter().filter(|s| s.token == token as i32).collect();
            let mut next = 0;
            for (i, part) in parts.iter().enumerate() {
                assert_eq!((part.first_key, part.part(), part.num_parts()), (next, i, parts.len()));
                assert_eq!(part.first_part, parts[0].first_part);
                next = part.end_key;
            }
            assert_eq!(next, len, "all keys of token {token}");
        }
        runs
    }

    #[test]
    fn every_key_is_in_one_segment() {
        for num_runs in [1, 2, 7, 66, 264] {
            check(&[], num_runs);
            check(&[0, 1, 64, 65, 0], num_runs);
            check(&[30_000], num_runs);
            check(&(0..256).map(|i| 1 + 37 * i % 1200).collect::<Vec<_>>(), num_runs);
        }
    }

    #[test]
    fn runs_are_of_about_one_length() {
        let lens: Vec<i32> = (0..256).map(|i| 100 + 379 * i % 1000).collect();
        let runs = check(&lens, 66);
        let costs = runs.starts.windows(2).map(|run| {
            let run = &runs.segments[run[0] as usize..run[1] as usize];
            run.iter()
                .map(|s| ((s.end_key - s.first_key) as usize).div_ceil(UNIT_KEYS) + SEGMENT_COST)
                .sum::<usize>()
        });
        let costs: Vec<usize> = costs.collect();
        let mean = costs.iter().sum::<usize>() / costs.len();
        assert!(costs.iter().all(|&cost| cost <= mean + mean / 16 + 2 * SEGMENT_COST), "{costs:?}");
    }

    #[test]
    fn a_padded_row_has_a_segment_without_keys() {
        let runs = check(&[0, 5], 4);
        let padded = runs.segments[0];
        assert_eq!((padded.first_key, padded.end_key, padded.num_parts()), (0, 0, 1));
    }

    #[test]
    fn tokens_of_a_chunk_see_the_keys_up_to_themselves() {
        let rows = StepRows { query_start: vec![0, 3], seq_lens: vec![10] };
        let seen: Vec<_> = tokens(&rows, 0).map(|s| (s.token, s.position, s.end_key, s.first_new)).collect();
        assert_eq!(seen, [(0, 7, 8, 7), (1, 8, 9, 7), (2, 9, 10, 7)]);
    }

    #[test]
    fn uncut_tokens_are_a_run_each() {
        let runs = uncut(all_tokens(&decode_rows(&[7, 3000])));
        assert_eq!((runs.starts, runs.num_parts), (vec![0, 1, 2], 0));
    }
}
