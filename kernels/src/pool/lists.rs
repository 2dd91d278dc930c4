//! The items of one call, in a list for each of its threads.

use crate::Error;
use std::vec::IntoIter;

/// Items that nobody has begun, and the failure of the first that failed. Items are numbered list
/// after list.
pub(super) struct Lists<T> {
    lists: Vec<List<T>>,
    failed: Option<(usize, Error)>,
}

/// What is left of a list.
struct List<T> {
    items: IntoIter<T>,
    /// The number of the first.
    first: usize,
}

impl<T> List<T> {
    fn next(&mut self) -> Option<(usize, T)> {
        let item = self.items.next()?;
        self.first += 1;
        Some((self.first - 1, item))
    }

    fn next_back(&mut self) -> Option<(usize, T)> {
        let item = self.items.next_back()?;
        Some((self.first + self.items.len(), item))
    }
}

impl<T> Lists<T> {
    pub(super) fn new(lists: Vec<Vec<T>>) -> Lists<T> {
        let mut end = 0;
        let list = |items: Vec<T>| {
            let first = end;
            end += items.len();
            let items = items.into_iter();
            List { items, first }
        };
        Lists {
            lists: lists.into_iter().map(list).collect(),
            failed: None,
        }
    }

    /// Items.
    pub(super) fn len(&self) -> usize {
        self.lists.iter().map(|one| one.items.len()).sum()
    }

    /// The next item of a thread on the processor of this number: the first of its own list or, if
    /// that has none, the last of the longest.
    pub(super) fn next(&mut self, processor: usize) -> Option<(usize, T)> {
        let own = processor % self.lists.len().max(1);
        if let Some(item) = self.lists.get_mut(own)?.next() {
            return Some(item);
        }
        let longest = self.lists.iter_mut().max_by_key(|one| one.items.len())?;
        longest.next_back()
    }

    /// Notes that an item failed, unless one before it did. Returns the items after it: they are
    /// not to be begun any more, and may take long to drop.
    pub(super) fn fail(&mut self, at: usize, error: Error) -> Vec<T> {
        if self.failed.as_ref().is_none_or(|&(first, _)| at < first) {
            self.failed = Some((at, error));
        }
        let mut later = Vec::new();
        for list in &mut self.lists {
            while list.first + list.items.len() > at + 1 {
                let Some((_, item)) = list.next_back() else {
                    break;
                };
                later.push(item);
            }
        }
        later
    }

    /// The error of the first item that failed.
    pub(super) fn failure(self) -> Option<Error> {
        self.failed.map(|(_, error)| error)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What threads on these processors get, one after the other.
    fn taken(mut lists: Lists<char>, processors: &[usize]) -> String {
        let next = |&processor| lists.next(processor).map_or('-', |(_, item)| item);
        processors.iter().map(next).collect()
    }

    #[test]
    fn a_processor_begins_with_its_list_and_goes_on_with_the_ends_of_others() {
        let lists = || Lists::new(vec![vec!['a', 'b'], vec!['c', 'd', 'e']]);
        assert_eq!(lists().len(), 5);
        assert_eq!(taken(lists(), &[0, 1, 0, 1, 1, 0]), "acbde-");
        assert_eq!(taken(lists(), &[0, 0, 0, 0, 0, 0]), "abedc-");
        // Which list a processor has is the same in each call.
        assert_eq!(taken(lists(), &[7, 4, 7]), "cad");
        assert_eq!(taken(Lists::new(Vec::new()), &[0]), "-");
        assert_eq!(taken(Lists::new(vec![vec![], vec!['a']]), &[0, 0]), "a-");
    }

    #[test]
    fn nothing_after_a_failure_is_left_and_the_first_failure_counts() {
        let mut lists = Lists::new(vec![vec!['a', 'b'], vec!['c', 'd'], vec!['e', 'f']]);
        assert_eq!(lists.next(1).unwrap(), (2, 'c'));
        assert_eq!(lists.next(0).unwrap(), (0, 'a'));
        assert_eq!(lists.fail(2, Error::invalid("later")), ['d', 'f', 'e']);
        assert_eq!(lists.next(2).unwrap(), (1, 'b'));
        assert!(lists.fail(0, Error::invalid("earlier")).is_empty());
        assert!(lists.fail(1, Error::invalid("between")).is_empty());
        assert!(lists.next(0).is_none());
        assert!(lists.failure().unwrap().to_string().contains("earlier"));
    }
}
