//! The plugin's ops in sessions of TensorFlow 2.x, without Python: what they compute, what they
//! refuse, and what is known of shapes before they run.
//!
//! Without a TensorFlow (`MX_REC_HOST_TENSORFLOW`, see ../build.rs) every test is ignored.

mod ahead;
mod cluster;
mod fields;
mod grouped;
mod listed;
mod lookup;
mod oracle;
mod pooled;
mod pooled_many;
mod refused;
mod saved;
mod sessions;
mod shapes;
mod table;
mod update;
