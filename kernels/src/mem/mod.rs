//! Memory taken from the system by the page, and the only place of the table that may touch raw
//! pointers.

mod available_memory;
mod bucket;
mod counter;
mod lines;
mod pages;
mod prefetch;
mod processes;
mod region;
mod slab;
mod writeback;

pub(crate) use available_memory::{check as check_available, reserved};
pub(crate) use bucket::{Bucket, NONE};
pub(crate) use counter::Counter;
pub(crate) use lines::Lines;
pub(crate) use pages::{Pages, Zeroable};
pub(crate) use prefetch::{each_asked, prefetch, prefetch_behind, prefetch_lines, BLOCK, LINE};
pub(crate) use processes::{exchange, process_exists, ticks_per_second};
pub(crate) use region::FreshPages;
pub(crate) use slab::{OwnedRows, Slab};
pub(crate) use writeback::start_writeback;
