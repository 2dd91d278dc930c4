//! Static shapes: what TensorFlow knows of the ops before they run, and what it refuses then.

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn placeholder() {}
