//! The verbs on tables: each orders the locks that it needs.

pub(super) mod admission;
#[cfg(test)]
mod admission_tests;
pub(super) mod apply;
pub(super) mod by_key;
pub(super) mod evict;
pub(super) mod fields;
pub(super) mod group_apply;
pub(super) mod group_lookup;
pub(super) mod group_prepare;
pub(super) mod group_push;
pub(super) mod group_read;
#[cfg(test)]
mod group_read_tests;
pub(super) mod lease;
pub(super) mod pooled;
pub(super) mod read;
