//! From the packings of GPTQ and AWQ to rows of elements, two of 4 bits or one of 8 bits a byte.

use crate::parallel;

/// Rows written at a time: a line of the cache has words of sixteen neighbours.
const ROWS: usize = 16;

/// 32 bits that hold several integers, the first in the lowest bits.
const WORD_BYTES: usize = 4;

/// Columns whose integers of 4 bits AWQ puts into a word, in the order of their nibbles.
const AWQ_ORDER: [usize; 8] = [0, 2, 4, 6, 1, 3, 5, 7];

/// GPTQ: `[columns / per word, rows]` words, a word holding neighbours of one row; gives `[rows, columns]`.
pub(super) fn gptq(words: &[u8], rows: usize, row_bytes: usize) -> Vec<u8> {
    let mut elements = vec![0; rows * row_bytes];
    parallel::for_each_chunk(&mut elements, ROWS * row_bytes, |at, out| {
        for word in 0..row_bytes / WORD_BYTES {
            for (row, out) in out.chunks_exact_mut(row_bytes).enumerate() {
                let from = (word * rows + at * ROWS + row) * WORD_BYTES;
                out[word * WORD_BYTES..][..WORD_BYTES].copy_from_slice(&words[from..from + WORD_BYTES]);
            }
        }
    });
    elements
}

/// AWQ: `[columns, rows / 8]` words, a word holding eight neighbours of one column; gives `[rows, columns]`.
pub(super) fn awq(words: &[u8], rows: usize, columns: usize) -> Vec<u8> {
    let row_bytes = columns / 2;
    let mut elements = vec![0; rows * row_bytes];
    parallel::for_each_chunk(&mut elements, ROWS * row_bytes, |at, out| {
        for column in 0..columns {
            for (row, out) in out.chunks_exact_mut(row_bytes).enumerate() {
                let element = awq_element(words, rows, column, at * ROWS + row);
                out[column / 2] |= element << (column % 2 * 4);
            }
        }
    });
    elements
}

/// Zero points of AWQ, `[groups, rows / 8]` words; gives `[rows, groups]`.
pub(super) fn awq_zeros(words: &[u8], rows: usize, groups: usize) -> Vec<u8> {
    transposed(rows, groups, |group, row| awq_element(words, rows, group, row))
}

fn awq_element(words: &[u8], rows: usize, line: usize, row: usize) -> u8 {
    let nibble = AWQ_ORDER.iter().position(|&place| place == row % 8).expect("every place is there");
    let byte = (line * (rows / 8) + row / 8) * WORD_BYTES + nibble / 2;
    words[byte] >> (nibble % 2 * 4) & 0x0f
}

/// Zero points of GPTQ, `[groups, rows / per word]` words; gives `[rows, groups]`. The first version of the format
/// stores them less one, so that a zero point of 0 is stored with all bits set.
pub(super) fn gptq_zeros(
    words: &[u8],
    rows: usize,
    groups: usize,
    bits: u32,
    zeros_less_one: bool,
) -> Vec<u8> {
    let (per_byte, mask) = (8 / bits as usize, u8::MAX >> (8 - bits));
    let line_bytes = rows / per_byte;
    transposed(rows, groups, |group, row| {
        let byte = words[group * line_bytes + row / per_byte];
        let stored = byte >> (row % per_byte * bits as usize) & mask;
        stored.wrapping_add(u8::from(zeros_less_one)) & mask
    })
}

/// Zero points of compressed-tensors, `[rows / per word, groups]` words that hold neighbours of a group; gives
/// `[rows, groups]`.
pub(super) fn packed_zeros(words: &[u8], rows: usize, groups: usize, bits: u32) -> Vec<u8> {
    let (per_byte, mask) = (8 / bits as usize, u8::MAX >> (8 - bits));
    let per_word = WORD_BYTES * per_byte;
    transposed(rows, groups, |group, row| {
        let byte = (row / per_word * groups + group) * WORD_BYTES + row % per_word / per_byte;
        words[byte] >> (row % per_byte * bits as usize) & mask
    })
}

/// Rows of integers in whole words; gives the rows without what fills up the last word of each.
pub(super) fn cut_rows(words: &[u8], rows: usize, row_bytes: usize) -> Vec<u8> {
    let stored_bytes = words.len() / rows.max(1);
    words.chunks_exact(stored_bytes.max(1)).flat_map(|row| &row[..row_bytes]).copied().collect()
}

/// `[rows, groups]` of what is asked for by group and row.
pub(super) fn transposed<T>(rows: usize, groups: usize, value: impl Fn(usize, usize) -> T) -> Vec<T> {
    (0..rows * groups).map(|at| value(at % groups, at / groups)).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_of_gptq_is_eight_neighbours_of_a_row() {
        // Eight columns, two rows.
        let words = [0x10, 0x32, 0x54, 0x76, 0x98, 0xba, 0xdc, 0xfe];
        assert_eq!(gptq(&words, 2, 4), words);
        // Sixteen columns: the second words of the rows come after the first ones.
        let words: Vec<u8> = (0..16).collect();
        assert_eq!(gptq(&words, 2, 8), [0, 1, 2, 3, 8, 9, 10, 11, 4, 5, 6, 7, 12, 13, 14, 15]);
    }

    #[test]
    fn a_word_of_awq_is_eight_rows_out_of_order() {
        // Two columns, eight rows: row r of column 0 holds r, of column 1 holds 15 - r.
        let word = |value: fn(usize) -> usize| {
            let bits = AWQ_ORDER.iter().enumerate().map(|(nibble, &row)| (value(row) as u32) << (4 * nibble));
            bits.sum::<u32>().to_le_bytes()
        };
        let words = [word(|row| row), word(|row| 15 - row)].concat();
        let rows = awq(&words, 8, 2);
        assert_eq!(rows, (0..8).map(|row| row | (15 - row) << 4).collect::<Vec<u8>>());
        assert_eq!(awq_zeros(&words, 8, 2)[..4], [0, 15, 1, 14]);
    }

    #[test]
    fn zeros_come_back_as_they_were_before_one_was_taken_off() {
        assert_eq!(gptq_zeros(&[0x7f, 0x07, 0, 0], 8, 1, 4, true)[..4], [0, 8, 8, 1]);
        assert_eq!(gptq_zeros(&[0x7f, 0x07, 0, 0], 8, 1, 4, false)[..3], [15, 7, 7]);
        assert_eq!(gptq_zeros(&[0xff, 0x7f, 0, 1], 4, 1, 8, true), [0, 128, 1, 2]);
        // Two groups of two rows: a word of each group.
        assert_eq!(packed_zeros(&[0x21, 0, 0, 0, 0x43, 0, 0, 0], 2, 2, 4), [1, 3, 2, 4]);
    }

    #[test]
    fn what_fills_up_a_word_is_cut_off() {
        assert_eq!(cut_rows(&[1, 2, 3, 0, 4, 5, 6, 0], 2, 3), [1, 2, 3, 4, 5, 6]);
    }
}
