//! Work on one batch: de-duplication, spreading rows over ids, summing gradients over rows.
//!
//! | file | what |
//! |---|---|
//! | `columns` | columns of a matrix, read in place |
//! | `grouped` | sorts the keys of a batch into groups that fit the first cache |
//! | `numbering` | a set that numbers what is distinct |
//! | `distinct` | distinct keys in order of first occurrence, with their rows |
//! | `occurrences` | which gradients belong to which row |
//! | `restore`, `reduce` | the two verbs that need no table |
//! | `summed` | what `reduce` gives, without a copy of the gradients that are alone |
//! | `turns` | which thread sums which rows, for both |

mod columns;
pub(crate) mod distinct;
mod grouped;
mod numbering;
pub(crate) mod occurrences;
mod reduce;
mod restore;
pub(crate) mod summed;
mod turns;

pub use columns::Columns;
pub use reduce::{reduce, reduce_columns};
pub(crate) use restore::out_of_range;
pub use restore::restore;
