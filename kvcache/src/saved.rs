//! State as words: what a flight recorder keeps of a manager, and what a manager is made of again.
//!
//! Of a hash or a salt only the half that [`BlockHash::low_bits`] gives is kept, and no token: what is made again is for
//! replays, in which names stand for contents.

use std::collections::{BTreeMap, VecDeque};

use crate::block::{BlockId, StepId};
use crate::hash::{BlockHash, BlockHashes, CacheSalt};
use crate::manager::PrefixStats;
use crate::pin::PinId;
use crate::prefix::BlockRef;
use crate::swap::{Direction, HostBlockId, OpenTransfer, SwappedTable, Transfer, TransferId};
use crate::table::BlockTable;

/// Something that can be written as words and read again. What is read has the right shape; whether it makes sense is
/// for whoever puts it to use to check.
pub trait Saved: Sized {
    /// Appends the words.
    fn save(&self, words: &mut Vec<u64>);

    /// Takes its words from the front; `None` if they are not those of such a thing.
    fn restore(words: &mut &[u64]) -> Option<Self>;
}

/// Saves a struct field by field, in the order given: all fields, or it does not compile.
#[macro_export]
macro_rules! saved {
    ($type:ty { $($field:tt),* $(,)? }) => {
        impl $crate::Saved for $type {
            fn save(&self, words: &mut Vec<u64>) {
                $($crate::Saved::save(&self.$field, words);)*
            }

            fn restore(words: &mut &[u64]) -> Option<Self> {
                Some(Self { $($field: $crate::Saved::restore(words)?),* })
            }
        }
    };
}

saved!(BlockId { 0 });
saved!(StepId { 0 });
saved!(PinId { 0 });
saved!(HostBlockId { 0 });
saved!(TransferId { 0 });
saved!(Transfer { id, direction, blocks });
saved!(BlockTable { blocks, num_registered, parent, cut, resets, lookup });
saved!(SwappedTable { blocks, num_tokens, resets });
saved!(OpenTransfer { table, until, host });
saved!(PrefixStats { query_tokens, hit_tokens });
saved!(BlockRef { block, generation });

impl Saved for u64 {
    fn save(&self, words: &mut Vec<u64>) {
        words.push(*self);
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        let (word, rest) = words.split_first()?;
        *words = rest;
        Some(*word)
    }
}

impl Saved for i64 {
    fn save(&self, words: &mut Vec<u64>) {
        words.push(*self as u64);
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        Some(u64::restore(words)? as Self)
    }
}

impl Saved for f64 {
    fn save(&self, words: &mut Vec<u64>) {
        words.push(self.to_bits());
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        Some(Self::from_bits(u64::restore(words)?))
    }
}

impl Saved for i32 {
    fn save(&self, words: &mut Vec<u64>) {
        i64::from(*self).save(words);
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        i64::restore(words)?.try_into().ok()
    }
}

impl Saved for u32 {
    fn save(&self, words: &mut Vec<u64>) {
        words.push((*self).into());
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        u64::restore(words)?.try_into().ok()
    }
}

impl Saved for usize {
    fn save(&self, words: &mut Vec<u64>) {
        words.push(*self as u64);
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        u64::restore(words)?.try_into().ok()
    }
}

impl Saved for bool {
    fn save(&self, words: &mut Vec<u64>) {
        words.push((*self).into());
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        match u64::restore(words)? {
            0 => Some(false),
            1 => Some(true),
            _ => None,
        }
    }
}

impl<T: Saved> Saved for Option<T> {
    fn save(&self, words: &mut Vec<u64>) {
        self.is_some().save(words);
        self.iter().for_each(|value| value.save(words));
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        if bool::restore(words)? { T::restore(words).map(Some) } else { Some(None) }
    }
}

impl<T: Saved> Saved for Box<T> {
    fn save(&self, words: &mut Vec<u64>) {
        T::save(self, words);
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        T::restore(words).map(Box::new)
    }
}

impl<A: Saved, B: Saved> Saved for (A, B) {
    fn save(&self, words: &mut Vec<u64>) {
        self.0.save(words);
        self.1.save(words);
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        Some((A::restore(words)?, B::restore(words)?))
    }
}

impl<T: Saved> Saved for Vec<T> {
    fn save(&self, words: &mut Vec<u64>) {
        self.len().save(words);
        self.iter().for_each(|value| value.save(words));
    }

    /// An element takes a word at least, so that no number makes a list longer than the words are.
    fn restore(words: &mut &[u64]) -> Option<Self> {
        let len = usize::restore(words).filter(|len| *len <= words.len())?;
        (0..len).map(|_| T::restore(words)).collect()
    }
}

impl<T: Saved> Saved for VecDeque<T> {
    fn save(&self, words: &mut Vec<u64>) {
        self.len().save(words);
        self.iter().for_each(|value| value.save(words));
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        Vec::restore(words).map(Self::from)
    }
}

impl<K: Saved + Ord, V: Saved> Saved for BTreeMap<K, V> {
    fn save(&self, words: &mut Vec<u64>) {
        self.len().save(words);
        for (key, value) in self {
            key.save(words);
            value.save(words);
        }
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        Vec::restore(words).map(|pairs| pairs.into_iter().collect())
    }
}

impl Saved for BlockHashes {
    fn save(&self, words: &mut Vec<u64>) {
        self.salt().low_bits().save(words);
        self.as_slice().len().save(words);
        words.extend(self.as_slice().iter().map(|hash| hash.low_bits()));
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        let mut hashes = Self::new(CacheSalt::from_low_bits(u64::restore(words)?));
        let names: Vec<u64> = Vec::restore(words)?;
        names.into_iter().for_each(|name| hashes.push(BlockHash::from_low_bits(name)));
        Some(hashes)
    }
}

impl Saved for Direction {
    fn save(&self, words: &mut Vec<u64>) {
        (*self == Self::In).save(words);
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        Some(if bool::restore(words)? { Self::In } else { Self::Out })
    }
}
