//! From keys to row numbers: the hash, one shard, the array of small keys, and all of a table.

mod direct;
mod hash;
mod shard;
mod sharded;

pub(crate) use hash::{hash, scale, top};
pub(crate) use sharded::Index;
