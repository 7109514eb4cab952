//! Ordered sets that know the place of each element.

use crate::ids::SeqId;
use crate::policy::Rank;

/// What sequences are ordered by.
pub(crate) type Key = (Rank, SeqId);

const NIL: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Node {
    key: Key,
    left: u32,
    right: u32,
    /// Nodes of the tree below, this one included.
    size: u32,
}

/// What an element of a set takes.
#[cfg(test)]
pub(crate) const NODE_BYTES: usize = size_of::<Node>();

/// The nodes of all sets, so that one that is emptied makes room for another.
#[derive(Debug, Default)]
pub(crate) struct Nodes {
    nodes: Vec<Node>,
    free: Vec<u32>,
}

/// A set of keys in their order: a treap (Seidel and Aragon, "Randomized Search Trees", 1996) whose "random" numbers are
/// a mix of the sequence's id, which nobody chooses. Insertion, removal and places are O(log n).
#[derive(Clone, Copy, Debug)]
pub(crate) struct OrderedSet {
    root: u32,
    first: u32,
}

impl OrderedSet {
    pub(crate) const EMPTY: Self = Self { root: NIL, first: NIL };

    /// The smallest key; O(1).
    pub(crate) fn first(&self, nodes: &Nodes) -> Option<Key> {
        nodes.key(self.first)
    }

    /// Adds a key that is not there.
    pub(crate) fn insert(&mut self, nodes: &mut Nodes, key: Key) {
        let node = nodes.add(key);
        if self.first(nodes).is_none_or(|first| key < first) {
            self.first = node;
        }
        self.root = nodes.insert(self.root, node);
    }

    /// Takes a key out; false if it is not there.
    pub(crate) fn remove(&mut self, nodes: &mut Nodes, key: Key) -> bool {
        let was_first = self.first(nodes) == Some(key);
        let Some(root) = nodes.remove(self.root, key) else { return false };
        self.root = root;
        if was_first {
            self.first = nodes.leftmost(root);
        }
        true
    }

    /// How many keys are smaller.
    pub(crate) fn place(&self, nodes: &Nodes, key: Key) -> usize {
        let (mut at, mut place) = (self.root, 0);
        while at != NIL {
            let node = &nodes.nodes[at as usize];
            if node.key < key {
                place += nodes.size(node.left) as usize + 1;
                at = node.right;
            } else {
                at = node.left;
            }
        }
        place
    }

    /// All keys, in order.
    pub(crate) fn keys(&self, nodes: &Nodes) -> Vec<Key> {
        let (mut keys, mut above, mut at) = (Vec::new(), Vec::new(), self.root);
        while at != NIL || !above.is_empty() {
            while at != NIL {
                above.push(at);
                at = nodes.nodes[at as usize].left;
            }
            let Some(top) = above.pop() else { break };
            keys.push(nodes.nodes[top as usize].key);
            at = nodes.nodes[top as usize].right;
        }
        keys
    }
}

impl Nodes {
    fn add(&mut self, key: Key) -> u32 {
        let node = Node { key, left: NIL, right: NIL, size: 1 };
        match self.free.pop() {
            Some(place) => {
                self.nodes[place as usize] = node;
                place
            }
            None => {
                self.nodes.push(node);
                (self.nodes.len() - 1) as u32
            }
        }
    }

    fn size(&self, node: u32) -> u32 {
        self.nodes.get(node as usize).map_or(0, |node| node.size)
    }

    fn key(&self, node: u32) -> Option<Key> {
        self.nodes.get(node as usize).map(|node| node.key)
    }

    fn leftmost(&self, root: u32) -> u32 {
        let mut at = root;
        while let Some(node) = self.nodes.get(at as usize).filter(|node| node.left != NIL) {
            at = node.left;
        }
        at
    }

    /// A node with a larger weight is nearer to the root.
    fn weight(&self, node: u32) -> u64 {
        let mut x = self.nodes[node as usize].key.1.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        x = (x ^ (x >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        x = (x ^ (x >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        x ^ (x >> 31)
    }

    fn with_children(&mut self, node: u32, left: u32, right: u32) -> u32 {
        let size = self.size(left) + self.size(right) + 1;
        let at = &mut self.nodes[node as usize];
        (at.left, at.right, at.size) = (left, right, size);
        node
    }

    fn insert(&mut self, root: u32, new: u32) -> u32 {
        if root == NIL {
            return new;
        }
        let Node { key, left, right, .. } = self.nodes[root as usize];
        let new_key = self.nodes[new as usize].key;
        assert!(new_key != key, "a sequence waits in one place");
        if self.weight(new) > self.weight(root) {
            let (left, right) = self.split(root, new_key);
            return self.with_children(new, left, right);
        }
        if new_key < key {
            let left = self.insert(left, new);
            self.with_children(root, left, right)
        } else {
            let right = self.insert(right, new);
            self.with_children(root, left, right)
        }
    }

    /// The keys below `key`, and those above.
    fn split(&mut self, root: u32, key: Key) -> (u32, u32) {
        if root == NIL {
            return (NIL, NIL);
        }
        let Node { key: at, left, right, .. } = self.nodes[root as usize];
        if at < key {
            let (middle, above) = self.split(right, key);
            (self.with_children(root, left, middle), above)
        } else {
            let (below, middle) = self.split(left, key);
            (below, self.with_children(root, middle, right))
        }
    }

    fn remove(&mut self, root: u32, key: Key) -> Option<u32> {
        let Node { key: at, left, right, .. } = *self.nodes.get(root as usize)?;
        if at == key {
            self.free.push(root);
            return Some(self.merge(left, right));
        }
        let (left, right) =
            if key < at { (self.remove(left, key)?, right) } else { (left, self.remove(right, key)?) };
        Some(self.with_children(root, left, right))
    }

    /// One tree of two of which all keys of the first are smaller.
    fn merge(&mut self, left: u32, right: u32) -> u32 {
        if left == NIL || right == NIL {
            return if left == NIL { right } else { left };
        }
        if self.weight(left) > self.weight(right) {
            let Node { left: below, right: middle, .. } = self.nodes[left as usize];
            let above = self.merge(middle, right);
            self.with_children(left, below, above)
        } else {
            let Node { left: middle, right: above, .. } = self.nodes[right as usize];
            let below = self.merge(left, middle);
            self.with_children(right, below, above)
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::testing::Rng;

    #[test]
    fn it_does_what_a_plain_set_does() {
        let mut rng = Rng::new(1);
        let (mut nodes, mut set, mut model) = (Nodes::default(), OrderedSet::EMPTY, BTreeSet::new());
        for id in 0..20_000 {
            let key = (Rank(i64::from(rng.range(0..50)), 0), SeqId(id));
            set.insert(&mut nodes, key);
            model.insert(key);
            if rng.one_in(2) || model.len() > 300 {
                let victim = *model.iter().nth(rng.range(0..model.len() as u32) as usize).unwrap();
                assert_eq!(set.place(&nodes, victim), model.range(..victim).count());
                assert!(set.remove(&mut nodes, victim) && model.remove(&victim));
                assert!(!set.remove(&mut nodes, victim));
            }
            assert_eq!(set.first(&nodes), model.first().copied());
        }
        assert!(set.keys(&nodes).into_iter().eq(model));
        assert!(nodes.nodes.len() < 400, "places are used again");
    }

    #[test]
    fn a_long_queue_is_no_deep_tree() {
        let (mut nodes, mut set) = (Nodes::default(), OrderedSet::EMPTY);
        (0..100_000).for_each(|id| set.insert(&mut nodes, (Rank(id as i64, 0), SeqId(id))));
        fn depth(nodes: &Nodes, root: u32) -> u32 {
            let Some(node) = nodes.nodes.get(root as usize) else { return 0 };
            1 + depth(nodes, node.left).max(depth(nodes, node.right))
        }
        assert!(depth(&nodes, set.root) < 60);
    }
}
