//! Head starts that end: how a preference becomes a bounded time.

use std::time::Duration;

use crate::ids::Time;
use crate::policy::Rank;

/// How much later than its arrival a sequence is ranked: `ageing × amount / (amount + half)`. It grows with the amount,
/// is half of `ageing` at `half`, and never reaches it: so nobody is overtaken by one that comes `ageing` later.
pub(super) fn delay(ageing: Duration, amount: u64, half: u64) -> Duration {
    let (amount, half) = (u128::from(amount), u128::from(half));
    let nanos = ageing.as_nanos() * amount / (amount + half).max(1);
    Duration::from_nanos(u64::try_from(nanos).unwrap_or(u64::MAX))
}

/// The rank of one that came in at `arrival` and is put behind those that come up to `delay` later.
pub(super) fn delayed(arrival: Time, delay: Duration) -> Rank {
    Rank::from(arrival + delay)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_delay_grows_and_stays_below_the_ageing() {
        let ageing = Duration::from_secs(60);
        let delays = [0, 1, 8, 1000, u64::MAX].map(|amount| delay(ageing, amount, 8));
        assert!(delays.is_sorted() && delays[4] <= ageing);
        assert_eq!((delays[0], delays[2]), (Duration::ZERO, ageing / 2));
        assert_eq!(delay(ageing, 0, 0), Duration::ZERO);
    }
}
