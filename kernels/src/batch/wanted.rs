//! What a batch of ids is asked for, and the answer.

/// What a batch is asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// Keys that have rows; the others get no position.
    Rows,
    /// All keys.
    Keys,
    /// All keys, and a list of them with their occurrences.
    Occurrences,
}

/// The distinct keys of a batch.
pub(crate) struct Distinct<O> {
    /// Distinct keys other than padding, those left out among them.
    pub(crate) keys: usize,
    /// The row of each distinct key, in order of first occurrence; -1 where the index has none.
    pub(crate) offsets: O,
    /// The positions in `offsets` that hold -1, in order, each with its key.
    pub(crate) missing: Vec<(u32, i64)>,
    /// With [`Wanted::Occurrences`]: the distinct keys in order of first occurrence, and how often
    /// each occurs. Else empty.
    pub(crate) list: (Vec<i64>, Vec<u32>),
}
