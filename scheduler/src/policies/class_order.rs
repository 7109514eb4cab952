//! Classes in the order of a number that the policy keeps for each.

use std::collections::{BTreeMap, BTreeSet};

use quire_kvcache::Saved;

use crate::ids::ClassId;

/// Classes with a score each, the smallest first; of equal ones the one that came in first. Every operation is
/// O(log n).
#[derive(Clone, Debug, Default)]
pub(super) struct ClassOrder {
    places: BTreeMap<ClassId, (u64, u64)>,
    order: BTreeSet<(u64, u64, ClassId)>,
    num_entered: u64,
}

impl ClassOrder {
    pub(super) fn first(&self) -> Option<(u64, ClassId)> {
        self.order.first().map(|(score, _, class)| (*score, *class))
    }

    pub(super) fn get(&self, class: ClassId) -> Option<u64> {
        self.places.get(&class).map(|(score, _)| *score)
    }

    pub(super) fn set(&mut self, class: ClassId, score: u64) {
        let entered = match self.places.get(&class) {
            Some(&(old, entered)) => {
                self.order.remove(&(old, entered, class));
                entered
            }
            None => {
                self.num_entered += 1;
                self.num_entered
            }
        };
        self.places.insert(class, (score, entered));
        self.order.insert((score, entered, class));
    }

    pub(super) fn remove(&mut self, class: ClassId) -> Option<u64> {
        let (score, entered) = self.places.remove(&class)?;
        self.order.remove(&(score, entered, class));
        Some(score)
    }
}

impl Saved for ClassOrder {
    fn save(&self, words: &mut Vec<u64>) {
        self.num_entered.save(words);
        self.places.save(words);
    }

    fn restore(words: &mut &[u64]) -> Option<Self> {
        let (num_entered, places): (u64, BTreeMap<ClassId, (u64, u64)>) = Saved::restore(words)?;
        let order = places.iter().map(|(class, (score, entered))| (*score, *entered, *class)).collect();
        Some(Self { places, order, num_entered })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_class_has_one_score_and_equal_ones_keep_their_turn() {
        let mut order = ClassOrder::default();
        order.set(ClassId(7), 5);
        order.set(ClassId(2), 3);
        assert_eq!(order.first(), Some((3, ClassId(2))));
        order.set(ClassId(2), 5);
        assert_eq!((order.first(), order.get(ClassId(2))), (Some((5, ClassId(7))), Some(5)));
        assert_eq!((order.remove(ClassId(7)), order.remove(ClassId(7))), (Some(5), None));
        assert_eq!(order.first(), Some((5, ClassId(2))));
    }
}
