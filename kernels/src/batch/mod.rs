//! Work on one batch: de-duplication, spreading rows over ids, summing gradients over rows.
//!
//! | file | what |
//! |---|---|
//! | `grouped` | sorts the keys of a batch into groups that fit the first cache |
//! | `distinct` | distinct keys in order of first occurrence, with their rows |
//! | `occurrences` | which gradients belong to which row |
//! | `restore`, `reduce` | the two verbs that need no table |

pub(crate) mod distinct;
mod grouped;
pub(crate) mod occurrences;
mod reduce;
mod restore;

pub use reduce::reduce;
pub use restore::restore;
