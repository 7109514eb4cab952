//! Doubly linked lists over the indices of one array: every operation is O(1) and allocates nothing.

/// No neighbour.
pub(crate) const NIL: u32 = u32::MAX;

/// The neighbours of an element; an element is in at most one list.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Links {
    prev: u32,
    next: u32,
}

impl Links {
    pub(crate) const NONE: Self = Self { prev: NIL, next: NIL };
}

/// A list: its ends and length. The links live in an array that the caller passes to each operation.
#[derive(Clone, Copy, Debug)]
pub(crate) struct List {
    head: u32,
    tail: u32,
    len: u32,
}

impl List {
    pub(crate) const EMPTY: Self = Self { head: NIL, tail: NIL, len: 0 };

    pub(crate) fn len(&self) -> u32 {
        self.len
    }

    pub(crate) fn head(&self) -> Option<u32> {
        (self.head != NIL).then_some(self.head)
    }

    pub(crate) fn push_back(&mut self, links: &mut [Links], element: u32) {
        links[element as usize] = Links { prev: self.tail, next: NIL };
        match self.tail {
            NIL => self.head = element,
            tail => links[tail as usize].next = element,
        }
        self.tail = element;
        self.len += 1;
    }

    pub(crate) fn remove(&mut self, links: &mut [Links], element: u32) {
        let Links { prev, next } = std::mem::replace(&mut links[element as usize], Links::NONE);
        match prev {
            NIL => self.head = next,
            prev => links[prev as usize].next = next,
        }
        match next {
            NIL => self.tail = prev,
            next => links[next as usize].prev = prev,
        }
        self.len -= 1;
    }

    pub(crate) fn iter<'a>(&self, links: &'a [Links]) -> impl Iterator<Item = u32> + 'a {
        let step = |element: u32| (element != NIL).then_some(element);
        std::iter::successors(step(self.head), move |&element| step(links[element as usize].next))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn elements_leave_from_anywhere() {
        let mut links = [Links::NONE; 4];
        let mut list = List::EMPTY;
        [3, 0, 1, 2].into_iter().for_each(|element| list.push_back(&mut links, element));
        assert_eq!(list.iter(&links).collect::<Vec<_>>(), [3, 0, 1, 2]);
        for (element, rest) in [(1, vec![3, 0, 2]), (2, vec![3, 0]), (3, vec![0]), (0, vec![])] {
            list.remove(&mut links, element);
            assert_eq!(list.iter(&links).collect::<Vec<_>>(), rest);
            assert_eq!(list.len() as usize, rest.len());
        }
        assert_eq!(list.head(), None);
    }
}
