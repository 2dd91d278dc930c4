//! What is kept, for how long, and what goes first. tests/loom has the interleavings.

use crate::kept::{Bytes, Kept, Limits};

/// A buffer of a name and a size.
#[derive(Debug, PartialEq)]
struct Fake(u32, usize);

impl Bytes for Fake {
    fn bytes(&self) -> usize {
        self.1
    }
}

const LIMITS: Limits = Limits {
    bytes: 1000,
    buffers: 4,
};

#[test]
fn a_buffer_that_came_back_serves_again_and_the_latest_first() {
    let kept = Kept::new(LIMITS);
    kept.hold();
    kept.give_back(Fake(1, 100));
    kept.give_back(Fake(2, 120));
    kept.give_back(Fake(3, 200));
    assert_eq!(kept.take(100), Some(Fake(2, 120)));
    assert_eq!(kept.take(100), Some(Fake(1, 100)));
    assert_eq!(kept.take(100), None);
    assert_eq!(kept.size(), (1, 200));
}

#[test]
fn the_oldest_go_first_beyond_either_limit() {
    let kept = Kept::new(LIMITS);
    kept.hold();
    for name in 0..6 {
        kept.give_back(Fake(name, 10));
    }
    assert_eq!(kept.size(), (4, 40));
    kept.give_back(Fake(6, 970));
    assert_eq!(kept.size(), (4, 1000));
    kept.give_back(Fake(7, 990));
    assert_eq!(kept.size(), (1, 990));
    kept.give_back(Fake(8, 1001));
    assert_eq!(kept.take(1001), None);
    assert!(kept.take(990).is_some());
}

#[test]
fn a_buffer_that_comes_back_after_the_last_holder_left_is_not_kept() {
    let kept = Kept::new(LIMITS);
    kept.give_back(Fake(0, 10));
    assert_eq!(kept.size(), (0, 0));
    kept.hold();
    kept.hold();
    kept.release();
    kept.give_back(Fake(1, 10));
    assert_eq!(kept.size(), (1, 10));
    kept.release();
    assert_eq!(kept.size(), (0, 0));
    kept.give_back(Fake(2, 10));
    assert_eq!(kept.size(), (0, 0));
}
