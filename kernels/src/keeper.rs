//! Memory that outlives a batch, so that the next one needs no new pages.

use crate::sync::Mutex;

/// What can be kept.
pub(crate) trait Keep {
    /// Bytes held.
    fn bytes(&self) -> usize;
}

/// The latest pieces that came back, at most so many of at most so many bytes in all.
pub(crate) struct Keeper<T> {
    kept: Mutex<Vec<T>>,
    pieces: usize,
    bytes: usize,
}

impl<T: Keep> Keeper<T> {
    /// Keeps at most `pieces` pieces of at most `bytes` bytes in all.
    pub(crate) fn new(pieces: usize, bytes: usize) -> Keeper<T> {
        Keeper {
            kept: Mutex::default(),
            pieces,
            bytes,
        }
    }

    /// The latest piece that fits, which is kept no longer.
    pub(crate) fn take(&self, fits: impl Fn(&T) -> bool) -> Option<T> {
        let mut kept = self.kept.lock();
        let at = kept.iter().rposition(fits)?;
        Some(kept.remove(at))
    }

    /// Keeps a piece, in place of the oldest ones beyond what is kept.
    pub(crate) fn keep(&self, piece: T) {
        if piece.bytes() > self.bytes {
            return;
        }
        let mut kept = self.kept.lock();
        kept.push(piece);
        let mut bytes: usize = kept.iter().map(T::bytes).sum();
        let mut old = 0;
        while kept.len() - old > self.pieces || bytes > self.bytes {
            bytes -= kept[old].bytes();
            old += 1;
        }
        let old: Vec<T> = kept.drain(..old).collect();
        // It takes time to drop them: not under the lock.
        drop(kept);
        drop(old);
    }

    /// Keeps nothing any more.
    pub(crate) fn clear(&self) {
        let kept = std::mem::take(&mut *self.kept.lock());
        drop(kept);
    }

    /// Whether nothing is kept.
    pub(crate) fn is_empty(&self) -> bool {
        self.kept.lock().is_empty()
    }

    /// Bytes kept.
    pub(crate) fn bytes(&self) -> usize {
        self.kept.lock().iter().map(T::bytes).sum()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Keep for Vec<u8> {
        fn bytes(&self) -> usize {
            self.len()
        }
    }

    #[test]
    fn the_latest_that_fits_comes_first_and_the_oldest_go() {
        let keeper = Keeper::new(3, 100);
        for bytes in [10, 20, 30, 40] {
            keeper.keep(vec![0; bytes]);
        }
        assert_eq!(keeper.bytes(), 90);
        assert!(keeper.take(|piece| piece.len() == 10).is_none());
        keeper.keep(vec![0; 101]);
        assert_eq!(keeper.bytes(), 90);
        keeper.keep(vec![0; 70]);
        assert_eq!(keeper.bytes(), 70);
        keeper.keep(vec![0; 25]);
        assert_eq!(keeper.take(|piece| piece.len() > 20).unwrap().len(), 25);
        assert_eq!(keeper.take(|_| true).unwrap().len(), 70);
        assert!(keeper.take(|_| true).is_none());
        keeper.keep(vec![0; 5]);
        keeper.clear();
        assert_eq!(keeper.bytes(), 0);
    }
}
