//! The plugin's ops in sessions of TensorFlow 2.x, without Python: what they compute, refuse and
//! know of shapes.

mod table;
mod probe;
