//! How the keys of few query tokens are shared out to clusters of blocks.

use super::runs::{Runs, Segment};

/// Blocks of a cluster, which merge what they have through each other's shared memory.
pub(super) const CLUSTER_BLOCKS: usize = 8;

/// Units of keys of a cluster that a second one would not help: merging clusters takes longer.
const MAX_UNITS: usize = 3 * CLUSTER_BLOCKS;

/// Gives each token a cluster and the longest ones the others, as long as each has more than
/// [`MAX_UNITS`]. The blocks
/// of a token share its units; its parts are those of its clusters.
///
/// # Panics
///
/// Where there are fewer clusters than tokens: the step's shape is then planned otherwise.
pub(super) fn shared_out(tokens: &[Segment], num_clusters: usize) -> Runs {
    let shares = shares(tokens, num_clusters);
    let mut runs = Runs { starts: vec![0], ..Runs::default() };
    for (token, &clusters) in tokens.iter().zip(&shares) {
        let (blocks, units) = (clusters * CLUSTER_BLOCKS, token.num_units());
        for block in 0..blocks {
            let part = token.units(units * block / blocks, units * (block + 1) / blocks);
            runs.segments.push(part.numbered(runs.num_parts, block / CLUSTER_BLOCKS, clusters));
            runs.starts.push(runs.segments.len() as i32);
        }
        runs.num_parts += clusters;
    }
    // What is left over has nothing to do.
    runs.starts.resize(num_clusters * CLUSTER_BLOCKS + 1, runs.segments.len() as i32);
    runs
}

/// Clusters of each token.
fn shares(tokens: &[Segment], num_clusters: usize) -> Vec<usize> {
    assert!(tokens.len() <= num_clusters, "{} tokens for {num_clusters} clusters", tokens.len());
    let mut shares = vec![1; tokens.len()];
    for _ in tokens.len()..num_clusters {
        let load = |(token, &clusters): (&Segment, &usize)| token.num_units() as f64 / clusters as f64;
        let loads = tokens.iter().zip(&shares).map(load).enumerate();
        let Some((longest, load)) = loads.max_by(|a, b| a.1.total_cmp(&b.1)) else { break };
        if load <= MAX_UNITS as f64 {
            break;
        }
        shares[longest] += 1;
    }
    shares
}

#[cfg(test)]
mod tests {
    use quire_kernels::StepRows;

    use super::super::runs;
    use super::*;

    fn check(seq_lens: &[i32], num_clusters: usize) -> Runs {
        let rows =
            StepRows { query_start: (0..=seq_lens.len() as i32).collect(), seq_lens: seq_lens.to_vec() };
        let tokens: Vec<_> = (0..rows.num_rows()).flat_map(|row| runs::tokens(&rows, row)).collect();
        let runs = shared_out(&tokens, num_clusters);
        assert_eq!(runs.starts.len(), num_clusters * CLUSTER_BLOCKS + 1);
        assert!(runs.num_parts <= num_clusters);
        assert!(runs.segments.len() <= num_clusters * CLUSTER_BLOCKS);
        assert!(runs.segments.len().is_multiple_of(CLUSTER_BLOCKS));
        for (token, &len) in seq_lens.iter().enumerate() {
            let mut next = 0;
            for segment in runs.segments.iter().filter(|s| s.token == token as i32 && s.end_key > s.first_key)
            {
                assert_eq!(segment.first_key, next);
                next = segment.end_key;
            }
            assert_eq!(next, len, "all keys of token {token}");
        }
        runs
    }

    #[test]
    fn every_key_is_in_one_block() {
        for num_clusters in [5, 8, 33] {
            check(&[], num_clusters);
            check(&[1], num_clusters);
            check(&[0, 30_000, 65], num_clusters);
            check(&[512, 513, 511, 1, 0], num_clusters);
        }
    }

    #[test]
    fn long_tokens_have_more_clusters() {
        let parts = |runs: &Runs, token| {
            runs.segments.iter().find(|s| s.token == token).map(|s| s.num_parts()).unwrap()
        };
        let runs = check(&[100, 30_000], 8);
        assert_eq!((parts(&runs, 0), parts(&runs, 1)), (1, 7));
        let short = check(&[512], 8);
        assert_eq!(parts(&short, 0), 1, "a cluster is not split for little");
    }
}
