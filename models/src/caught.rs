//! Panics of libraries that trust what they read.

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};

thread_local! {
    static IS_CAUGHT: Cell<bool> = const { Cell::new(false) };
}

/// Whether a panic of this thread would be caught and told as an error of a file: a program's panic hook has nothing to add
/// to that, and may stay silent.
pub fn panics_are_caught() -> bool {
    IS_CAUGHT.get()
}

/// What `read` gives, or `None` where it panics. What it was about to make must be dropped whole, so that nothing broken is
/// seen afterwards.
pub(crate) fn caught<T>(read: impl FnOnce() -> T) -> Option<T> {
    let before = IS_CAUGHT.replace(true);
    let read = catch_unwind(AssertUnwindSafe(read));
    IS_CAUGHT.set(before);
    read.ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_panic_ends_in_nothing_and_is_known_to_do_so() {
        assert!(!panics_are_caught());
        assert_eq!(caught(panics_are_caught), Some(true));
        assert_eq!(caught(|| [0][std::hint::black_box(1)]), None);
        assert!(!panics_are_caught());
    }
}
