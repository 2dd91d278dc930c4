//! Loading: finds the TensorFlow of the process and registers every op with it.

use crate::sys::{self, LoadError};
use crate::{ops, tables, tf};

/// Finds TensorFlow and registers every op with it; returns the version of that TensorFlow. Called
/// once, while TensorFlow loads the plugin.
///
/// # Errors
/// As [`LoadError`] says; ops that were registered before the refusal stay registered.
pub fn load() -> Result<String, LoadError> {
    let api = sys::find()?;
    // A second kernel for an op would make TensorFlow refuse to run either.
    if ops::registered(api).map_err(LoadError::Refused)? {
        return Err(LoadError::OtherCopy);
    }
    // A step that fails has counted nothing.
    tf::at_failure(tables::uncount);
    ops::register_all(api).map_err(LoadError::Refused)?;
    Ok(tf::version(api))
}
