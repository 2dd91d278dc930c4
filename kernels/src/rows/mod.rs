//! Where the floats of a row are: a row number goes in, the floats come out.
//!
//! | file | what |
//! |---|---|
//! | `row_store` | what a table needs of whatever holds its rows |
//! | `in_memory` | rows in memory, all of them |

mod in_memory;
mod row_store;

use in_memory::InMemory;
pub(crate) use row_store::{RowPart, RowStore};

/// What tables keep their rows in.
pub(crate) type Store = InMemory;
