//! What templates may use. The server's own are trusted with more than those that come with requests.

use std::time::Duration;

/// What a rendering may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// Bytes of the template itself.
    pub(super) source_bytes: usize,
    /// Steps.
    pub(super) fuel: Allowance,
    /// Bytes of text and lists that are made.
    pub(super) bytes: Allowance,
    /// Whether no value may hold more than all that is made may come to, however often it holds the same.
    pub(super) bounds_values: bool,
    /// Steps are limited, and what each makes; this is for those that look through much and make little.
    pub(super) time: Duration,
}

/// An amount that grows with the conversation.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Allowance {
    base: u64,
    per_byte: u64,
    most: u64,
}

impl Limits {
    /// For a template of the server: a conversation of ten thousand messages takes a few million steps.
    pub(super) const OWN: Self = Self {
        source_bytes: usize::MAX,
        fuel: Allowance::of(50_000_000),
        bytes: Allowance { base: 256 << 20, per_byte: 256, most: u64::MAX },
        bounds_values: false,
        time: Duration::from_secs(5),
    };

    /// For a template of a request: half a second of a slow core, however long the conversation.
    pub(super) const OF_REQUEST: Self = Self {
        source_bytes: 1 << 20,
        fuel: Allowance { base: 1_000_000, per_byte: 8, most: 5_000_000 },
        // A template that gathers its text piece by piece makes as much as the square of it.
        bytes: Allowance { base: 32 << 20, per_byte: 64, most: 256 << 20 },
        bounds_values: true,
        time: Duration::from_millis(800),
    };

    /// For the small conversations on which a template is tried.
    pub(super) fn of_trial(self) -> Self {
        Self { fuel: Allowance::of(500_000), bytes: Allowance::of(4 << 20), ..self }
    }
}

impl Allowance {
    /// The same for every conversation.
    const fn of(amount: u64) -> Self {
        Self { base: amount, per_byte: 0, most: amount }
    }

    /// What a conversation of so many bytes may have.
    pub(super) fn for_input(self, num_bytes: u64) -> u64 {
        self.base.saturating_add(self.per_byte.saturating_mul(num_bytes)).min(self.most)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_longer_conversation_may_use_more_up_to_a_bound() {
        let fuel = Limits::OF_REQUEST.fuel;
        assert_eq!(fuel.for_input(0), 1_000_000);
        assert_eq!(fuel.for_input(100_000), 1_800_000);
        assert_eq!(fuel.for_input(u64::MAX), 5_000_000);
        assert_eq!(Limits::OWN.of_trial().fuel.for_input(1 << 40), 500_000);
    }
}
