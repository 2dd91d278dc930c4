//! The engine: embedding tables that grow, their rows, their optimizers and their files.
//!
//! It knows nothing of TensorFlow or Python, keeps no global state and reads neither clock nor environment.

mod error;

pub use error::{Error, Kind, Result};
