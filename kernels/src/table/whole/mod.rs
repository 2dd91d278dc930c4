//! The whole content of a table: out, in, and changed for another.

pub(super) mod export;
pub(super) mod history_io;
pub(super) mod load;
pub(super) mod swap;
