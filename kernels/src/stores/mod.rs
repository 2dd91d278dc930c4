//! Where the floats of a row are: a row number goes in, the floats come out.
//!
//! | file | what |
//! |---|---|
//! | `row_store` | what verbs need of whatever holds the rows they read and write |
//! | `in_memory` | rows in memory, all of them |
//! | `tiered` | rows in memory up to a number, the others on disk |
//! | `side_rows` | rows on disk that are read and stay there |
//! | `bring_in`, `buffers` | how rows change places, and memory for it |
//! | `setup` | what a table is told of its tier |
//! | `on_disk` | all rows on disk, one after the other |
//! | `pins` | which frames of memory keep their rows |
//! | `half_rows` | what a table keeps beside such rows: their keys, and how they round |
//! | `halves` | rows of 2 bytes a value, read as floats |
//! | `waiting` | which rows have missed steps, and how they are read meanwhile |
//! | `store` | one of the two, chosen when the table is made |

mod bring_in;
mod buffers;
mod half_rows;
mod halves;
mod in_memory;
mod on_disk;
mod pins;
mod row_store;
mod setup;
mod side_rows;
mod store;
mod tiered;
mod waiting;

pub(crate) use bring_in::{Begun, Exchange, Request};
pub(crate) use half_rows::HalfRows;
pub(crate) use halves::Decoded;
pub(crate) use pins::{LeasePins, Lent, Pinned};
pub(crate) use row_store::{ReadRows, RowPart};
pub(crate) use setup::TierSetup;
pub(crate) use side_rows::{Planned, SideRows};
pub(crate) use store::{with_rows, Part, Store};
pub(crate) use tiered::{again, no_frames, shortage, Tiered};
pub(crate) use waiting::{as_now, with_rows_now, CaughtUp, Waiting};
