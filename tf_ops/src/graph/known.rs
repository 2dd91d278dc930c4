//! The result of a search in a graph: what was found, or that it cannot be told.

use mx_rec_kernels::{Error, Result};

/// Why a search has found nothing.
pub(super) enum Missing {
    /// The graph has something else there, or does not tell.
    Unknown,
    /// The graph cannot be read.
    Unreadable(Error),
}

/// What a search has found.
pub(super) type Found<T> = Result<T, Missing>;

impl From<Error> for Missing {
    fn from(error: Error) -> Self {
        Self::Unreadable(error)
    }
}

/// What a search takes, and ends without.
pub(super) trait Known<T> {
    fn known(self) -> Found<T>;
}

impl<T> Known<T> for Option<T> {
    fn known(self) -> Found<T> {
        self.ok_or(Missing::Unknown)
    }
}

impl<T> Known<T> for Result<Option<T>> {
    fn known(self) -> Found<T> {
        self?.known()
    }
}

/// Ends a search where something does not hold.
pub(super) fn holds(condition: bool) -> Found<()> {
    condition.then_some(()).known()
}

/// What a search has found, for what goes on without it.
pub(super) fn if_known<T>(found: Found<T>) -> Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(Missing::Unknown) => Ok(None),
        Err(Missing::Unreadable(error)) => Err(error),
    }
}
