//! A read that has to wait for the disk.

use std::fs::File;

/// A read of a batch that is not complete.
pub(super) struct Pending<'r> {
    /// Which of the batch.
    pub(super) number: usize,
    pub(super) file: &'r File,
    /// Where the next byte is, and where it goes.
    pub(super) at: u64,
    pub(super) into: &'r mut [u8],
    /// So many bytes have to come: all of `into`, or fewer if it ends with a whole page.
    pub(super) needed: usize,
    /// What comes counts in whole units of so many bytes: 1, or a page past the page cache.
    pub(super) unit: usize,
}

/// How a read stands after some bytes came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// All that is needed is there.
    Done,
    /// The rest is to be read.
    Rest,
    /// The file ends too early.
    Ended,
}

impl Pending<'_> {
    /// Notes that so many bytes have come.
    pub(super) fn came(&mut self, bytes: usize) -> Progress {
        if bytes >= self.needed {
            return Progress::Done;
        }
        let whole = bytes - bytes % self.unit;
        if whole == 0 {
            return Progress::Ended;
        }
        self.at += whole as u64;
        self.needed -= whole;
        self.into = &mut std::mem::take(&mut self.into)[whole..];
        Progress::Rest
    }
}

#[cfg(test)]
mod tests {
    use super::{Pending, Progress};

    #[test]
    fn a_read_of_pages_goes_on_at_a_page_and_ends_with_what_is_needed() {
        let file = std::fs::File::open("/dev/null").unwrap();
        let mut bytes = [0; 64];
        let mut read = Pending {
            number: 0,
            file: &file,
            at: 32,
            into: &mut bytes,
            needed: 50,
            unit: 16,
        };
        assert_eq!(read.came(33), Progress::Rest);
        assert_eq!((read.at, read.into.len(), read.needed), (64, 32, 18));
        assert_eq!(read.came(15), Progress::Ended);
        assert_eq!(read.came(18), Progress::Done);
        (read.unit, read.needed) = (1, 32);
        assert_eq!(read.came(1), Progress::Rest);
        assert_eq!((read.at, read.into.len(), read.needed), (65, 31, 31));
        assert_eq!(read.came(0), Progress::Ended);
        assert_eq!(read.came(31), Progress::Done);
    }
}
