//! Work on one batch: de-duplication, spreading rows over ids, summing gradients over rows.
//!
//! | file | what |
//! |---|---|
//! | `columns` | columns of a matrix, read in place |
//! | `grouped` | sorts the keys of a batch into groups that fit the first cache |
//! | `numbering` | a set that numbers what is distinct |
//! | `wanted` | what a batch is asked for, and the answer |
//! | `ranged` | distinct keys, each thread those of its own range first |
//! | `distinct` | distinct keys in order of first occurrence, with their rows |
//! | `occurrences` | which gradients belong to which row |
//! | `restore`, `reduce` | the two verbs that need no table |
//! | `split` | distinct keys by part of a table, and rows that come back from the parts |
//! | `summed` | what `reduce` gives, without a copy of the gradients that are alone |
//! | `turns` | which thread sums which rows, for both |
//! | `bags` | which ids are pooled, with their weights |
//! | `pooling` | adds up the rows of every bag |
//! | `by_key` | the gradient of every key from those of its bags |
//! | `max_norm` | rows that are scaled down before they are added up |
//! | `divisors` | what makes means of sums; the bags of sparse ids |
//! | `sparse_bags` | sparse ids in any order, made bags |
//! | `sums` | sums of rows, in registers where that is possible |

mod bags;
pub(crate) mod by_key;
mod columns;
pub(crate) mod distinct;
mod divisors;
mod grouped;
mod max_norm;
mod numbering;
pub(crate) mod occurrences;
pub(crate) mod pooling;
mod ranged;
pub(crate) mod reduce;
mod restore;
mod sparse_bags;
mod split;
pub(crate) mod summed;
pub(crate) mod sums;
mod turns;
mod wanted;

pub use bags::Bags;
pub use by_key::reduce_pooled;
pub use columns::Columns;
pub use divisors::{bag_divisors, sparse_bag_ends, Divisor};
pub use max_norm::MaxNorm;
pub use pooling::{restore_pooled, weight_gradients};
pub use reduce::{reduce, reduce_columns};
pub(crate) use restore::out_of_range;
pub use restore::restore;
pub use sparse_bags::{sparse_bags, Combiner, SparseBags, SparseRules};
pub use split::{rows_of_part, stitch, SplitKeys, Splitter, StitchTo};
