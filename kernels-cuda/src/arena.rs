//! Where slices of one reservation lie: bookkeeping without memory.

use std::collections::BTreeMap;

/// Slices start at multiples of this many bytes.
pub(crate) const ALIGN: usize = 512;

/// Free and taken runs of a reservation. A slice is taken from the smallest free run that holds it; free runs
/// that touch become one.
#[derive(Debug)]
pub(crate) struct Arena {
    num_bytes: usize,
    free_bytes: usize,
    /// Length of each free run, by its start. No two touch.
    free: BTreeMap<usize, usize>,
}

impl Arena {
    /// A reservation that is all free.
    pub(crate) fn new(num_bytes: usize) -> Self {
        let num_bytes = num_bytes / ALIGN * ALIGN;
        let free = if num_bytes == 0 { BTreeMap::new() } else { BTreeMap::from([(0, num_bytes)]) };
        Self { num_bytes, free_bytes: num_bytes, free }
    }

    /// Bytes of all free runs together.
    pub(crate) fn free_bytes(&self) -> usize {
        self.free_bytes
    }

    /// Whether nothing is taken.
    pub(crate) fn is_unused(&self) -> bool {
        self.free_bytes == self.num_bytes
    }

    /// Takes a slice and returns its start, or `None` where no free run holds it.
    pub(crate) fn take(&mut self, num_bytes: usize) -> Option<usize> {
        let wanted = slice_bytes(num_bytes)?;
        let fitting = self.free.iter().filter(|&(_, &length)| length >= wanted);
        let (&start, &length) = fitting.min_by_key(|&(&start, &length)| (length, start))?;
        self.free.remove(&start);
        if length > wanted {
            self.free.insert(start + wanted, length - wanted);
        }
        self.free_bytes -= wanted;
        Some(start)
    }

    /// Gives back a slice that [`take`](Self::take) returned, of the same size.
    ///
    /// # Panics
    ///
    /// Where part of the slice is free: it was given back before.
    pub(crate) fn give(&mut self, start: usize, num_bytes: usize) {
        let length = slice_bytes(num_bytes).expect("a slice that was taken has a size");
        let end = start + length;
        let before = self.free.range(..start).next_back().map(|(&s, &l)| (s, l));
        let after = self.free.range(start..).next().map(|(&s, &l)| (s, l));
        assert!(
            before.is_none_or(|(s, l)| s + l <= start) && after.is_none_or(|(s, _)| end <= s),
            "a slice is given back once"
        );
        assert!(end <= self.num_bytes, "a slice lies in the reservation");
        let (mut start, mut run) = (start, length);
        if let Some((s, l)) = before.filter(|&(s, l)| s + l == start) {
            self.free.remove(&s);
            (start, run) = (s, l + run);
        }
        if let Some((s, l)) = after.filter(|&(s, _)| s == end) {
            self.free.remove(&s);
            run += l;
        }
        self.free.insert(start, run);
        self.free_bytes += length;
    }
}

/// Bytes that a slice takes, or `None` on overflow.
fn slice_bytes(num_bytes: usize) -> Option<usize> {
    num_bytes.max(1).checked_next_multiple_of(ALIGN)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn freed_slices_are_used_again_and_grow_together() {
        let mut arena = Arena::new(4 * ALIGN + 7);
        let slices: Vec<usize> = (0..4).map(|_| arena.take(1).unwrap()).collect();
        assert_eq!(slices, [0, ALIGN, 2 * ALIGN, 3 * ALIGN]);
        assert_eq!((arena.take(1), arena.free_bytes()), (None, 0));
        arena.give(ALIGN, 1);
        arena.give(3 * ALIGN, 1);
        assert_eq!(arena.take(2 * ALIGN), None, "two runs that do not touch hold no slice of both");
        arena.give(2 * ALIGN, 1);
        assert_eq!(arena.take(3 * ALIGN), Some(ALIGN));
        arena.give(0, 1);
        arena.give(ALIGN, 3 * ALIGN);
        assert!(arena.is_unused());
    }

    #[test]
    fn absurd_sizes_do_not_fit() {
        let mut arena = Arena::new(1 << 20);
        assert_eq!((arena.take(usize::MAX), arena.take((1 << 20) + 1)), (None, None));
        assert_eq!(Arena::new(5).take(0), None);
    }

    proptest! {
        // Against a map of single units: slices are disjoint, aligned and inside; what is free is what nobody
        // holds; a slice is refused only where no run of free units is long enough.
        #[test]
        fn the_arena_agrees_with_a_map_of_units(ops in prop::collection::vec((any::<bool>(), 0usize..9 * ALIGN), 1..200)) {
            const UNITS: usize = 32;
            let mut arena = Arena::new(UNITS * ALIGN);
            let mut units = [false; UNITS];
            let mut held: Vec<(usize, usize)> = Vec::new();
            for (gives, number) in ops {
                if gives && !held.is_empty() {
                    let (start, num_bytes) = held.swap_remove(number % held.len());
                    arena.give(start, num_bytes);
                    units[start / ALIGN..(start + num_bytes.max(1)).div_ceil(ALIGN)].fill(false);
                } else {
                    let length = number.max(1).div_ceil(ALIGN);
                    let fits = units.windows(length).any(|run| run.iter().all(|&taken| !taken));
                    let taken = arena.take(number);
                    prop_assert_eq!(taken.is_some(), fits);
                    if let Some(start) = taken {
                        prop_assert_eq!(start % ALIGN, 0);
                        let run = &mut units[start / ALIGN..start / ALIGN + length];
                        prop_assert!(run.iter().all(|&taken| !taken));
                        run.fill(true);
                        held.push((start, number));
                    }
                }
                prop_assert_eq!(arena.free_bytes(), units.iter().filter(|&&taken| !taken).count() * ALIGN);
                prop_assert_eq!(arena.is_unused(), held.is_empty());
            }
        }
    }
}
