//! The definitions of ops and of a table's configuration, and what tables hold, for Python: JSON in
//! and out, through ctypes (include/mx_rec.h).

use crate::ffi_buffer::bytes;
use mx_rec_tf_ops::{check_table, held_by_tables, infer_shapes, ops, Lengths, Shape};
use serde::Deserialize;

exports! {
    /// The definitions of all ops. include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// `result` and `result_size` point to places that can be written, or are null, and then
    /// nothing is done.
    fn mx_rec_op_definitions() "describing the ops" => ops::json();

    /// The optimizers. include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// As of `mx_rec_op_definitions`.
    fn mx_rec_optimizers() "describing optimizers" => ops::optimizers();

    /// The shapes of an op's outputs by those of its inputs. include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// `question` points to that many readable bytes, or is null. `result` and `result_size` point
    /// to places that can be written, or are null, and then nothing is done.
    fn mx_rec_infer_shapes(question: *const u8, question_size: usize)
        "inferring shapes" => infer(bytes(question, question_size));

    /// Checks the configuration of a table, as the op MxRecTable takes it.
    ///
    /// # Safety
    /// As of `mx_rec_infer_shapes`.
    fn mx_rec_check_table(config: *const u8, config_size: usize)
        "checking a table" => check_table(bytes(config, config_size)).map(String::into_bytes);

    /// What the tables of sessions hold. include/mx_rec.h has the JSON.
    ///
    /// # Safety
    /// As of `mx_rec_op_definitions`.
    fn mx_rec_tables() "counting rows" => held_by_tables();
}

/// An op whose shapes are asked for.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Question {
    op: String,
    inputs: Vec<Shape>,
    lists: Lengths,
}

fn infer(json: &[u8]) -> Result<Vec<u8>, Box<dyn std::error::Error>> {
    let Question { op, inputs, lists } = serde_json::from_slice(json)?;
    let shapes = infer_shapes(ops::definition(&op)?, &inputs, &lists)?;
    Ok(serde_json::to_vec(&shapes)?)
}
