//! What a GraphDef says of tensors: their static shapes, and the numbers of constants.

use super::graph_def::{Graph, Node, NodeInput};
use super::lists::{length, members, reads_ids};
use super::readers::source_of;
use super::wire::{last_bytes, Fields, Value};
use mx_rec_kernels::Result;
use serde::Deserialize;

/// The sizes of a tensor's dimensions; `None` for one that is not known.
pub(super) type Dims = Vec<Option<i64>>;

/// So many nodes are followed for a shape that is not stated.
const MOST_STEPS: usize = 64;

/// Constants of more elements are not read.
const MOST_ELEMENTS: i64 = 64;

/// TensorFlow's numbers of types.
const INT32: u64 = 3;
const UINT8: u64 = 4;
const INT64: u64 = 9;

/// Ops whose output 0 has the shape of their input 0.
const SAME_SHAPE: [&str; 14] = [
    "Identity",
    "StopGradient",
    "Cast",
    "AsString",
    "StringToNumber",
    "StringToHashBucket",
    "StringToHashBucketFast",
    "StringToHashBucketStrong",
    "Abs",
    "Neg",
    "Floor",
    "ZerosLike",
    "OnesLike",
    "CheckNumerics",
];

/// The shape of a tensor as far as it is known; `None` if not even its rank is.
pub(super) fn dims(graph: &Graph<'_>, input: &NodeInput<'_>) -> Result<Option<Dims>> {
    let mut tensor = *input;
    let mut behind: Dims = Vec::new();
    for _ in 0..MOST_STEPS {
        let Some((at, output)) = tensor.place() else {
            return Ok(None);
        };
        let node = graph.node(at)?;
        let known = graph.shape_of.and_then(|known| known(node.name, output));
        let stated = match known.map_or_else(|| stated(node, output), |known| Ok(Some(known)))? {
            None if node.op == "Const" => constant(node)?.map(|found| found.dims),
            stated => stated,
        };
        if let Some(mut found) = stated {
            found.extend(behind);
            return Ok(Some(found));
        }
        let next = match node.op {
            op if output == 0 && SAME_SHAPE.contains(&op) => 0,
            // The inverse has the shape of the ids; there are as many outputs of it as handles.
            "MxRecIdOffset" if place(output) >= members(node)? => place(output),
            "MxRecFind" if length(node, "B")? == 0 => 2 * members(node)? + place(output),
            "MxRecRestore" => 1,
            "MxRecRead" if reads_ids(node)? => 3 * members(node)? + place(output),
            _ => return Ok(None),
        };
        if matches!(node.op, "MxRecRead" | "MxRecFind" | "MxRecRestore") {
            behind.insert(0, None);
        }
        match graph.data_input(node, next) {
            Some(next) => tensor = *next,
            None => return Ok(None),
        }
    }
    Ok(None)
}

fn place(number: u64) -> usize {
    usize::try_from(number).unwrap_or(usize::MAX)
}

/// The shape that attributes of a node state for one of its outputs.
fn stated(node: &Node<'_>, output: u64) -> Result<Option<Dims>> {
    let at = usize::try_from(output).unwrap_or(usize::MAX);
    let mut names = vec!["_output_shapes"];
    match node.op {
        "IteratorGetNext" | "IteratorGetNextSync" => names.push("output_shapes"),
        "Placeholder" | "PlaceholderWithDefault" => names.push("shape"),
        _ => {}
    }
    for name in names {
        let mut shapes = Vec::new();
        for field in Fields::new("AttrValue", node.attr(name)?.unwrap_or_default()) {
            let field = field?;
            match (field.number, field.bytes()) {
                (7, Some(shape)) => shapes.push(shape),
                (1, Some(list)) => {
                    for field in Fields::new("AttrValue.ListValue", list) {
                        let field = field?;
                        shapes.extend(field.bytes().filter(|_| field.number == 7));
                    }
                }
                _ => {}
            }
        }
        if let Some(shape) = shapes.get(at) {
            if let Some(dims) = read_shape(shape)? {
                return Ok(Some(dims));
            }
        }
    }
    Ok(None)
}

/// Reads a TensorShapeProto; `None` for an unknown rank.
fn read_shape(bytes: &[u8]) -> Result<Option<Dims>> {
    let mut dims = Vec::new();
    for field in Fields::new("TensorShapeProto", bytes) {
        let field = field?;
        match (field.number, field.value) {
            (2, Value::Bytes(dim)) => {
                let mut size = 0;
                for field in Fields::new("TensorShapeProto.Dim", dim) {
                    let field = field?;
                    if field.number == 1 {
                        size = field.varint().map_or(size, |number| number as i64);
                    }
                }
                dims.push((size >= 0).then_some(size));
            }
            (3, Value::Varint(1..)) => return Ok(None),
            _ => {}
        }
    }
    Ok(Some(dims))
}

/// A constant of a few elements.
#[derive(Clone, Debug)]
pub(super) struct Constant<'a> {
    /// Its shape, all of it known.
    pub(super) dims: Dims,
    /// Its elements, if they are integers.
    pub(super) integers: Option<Vec<i64>>,
    /// The same, if they are bytes; of any number of elements.
    bytes: Option<&'a [u8]>,
}

/// What a node of op Const holds; `None` for any other node and for large and strange constants.
pub(super) fn constant<'a>(node: &Node<'a>) -> Result<Option<Constant<'a>>> {
    if node.op != "Const" {
        return Ok(None);
    }
    let tensor = last_bytes("AttrValue", node.attr("value")?.unwrap_or_default(), 8)?;
    let (mut dtype, mut dims, mut content): (u64, Option<Dims>, &[u8]) = (0, Some(Vec::new()), &[]);
    let mut integers = Vec::new();
    for field in Fields::new("TensorProto", tensor) {
        let field = field?;
        match (field.number, field.value) {
            (1, Value::Varint(number)) => dtype = number,
            (2, Value::Bytes(shape)) => dims = read_shape(shape)?,
            (4, Value::Bytes(bytes)) => content = bytes,
            (7 | 10, Value::Varint(number)) => integers.push(number as i64),
            (7 | 10, Value::Bytes(packed)) => integers.extend(varints(packed)),
            _ => {}
        }
    }
    let Some(dims) = dims else { return Ok(None) };
    let count = dims
        .iter()
        .try_fold(1_i64, |count, dim| count.checked_mul((*dim)?));
    let Some(count) = count.filter(|&count| count >= 0) else {
        return Ok(None);
    };
    let integers = match (dtype, content) {
        _ if count > MOST_ELEMENTS => None,
        (INT32 | INT64, []) => filled(integers, count),
        (INT32, content) => whole(words(content).map(|word| i64::from(word as i32)), count),
        (INT64, content) => whole(
            content
                .chunks_exact(8)
                .filter_map(|bytes| Some(i64::from_le_bytes(bytes.try_into().ok()?))),
            count,
        ),
        _ => None,
    };
    Ok(Some(Constant {
        dims,
        integers,
        bytes: (dtype == UINT8).then_some(content),
    }))
}

/// The elements of a tensor that is a constant of a few integers; `None` for any other.
pub(super) fn integers_of(graph: &Graph<'_>, tensor: &NodeInput<'_>) -> Result<Option<Vec<i64>>> {
    let found = source_of(graph, tensor).map(constant);
    Ok(found
        .transpose()?
        .flatten()
        .and_then(|found| found.integers))
}

/// The names of the tables whose configurations a tensor has; `None` if it is not constant.
pub(super) fn tables_of(graph: &Graph<'_>, tensor: &NodeInput<'_>) -> Result<Option<Vec<String>>> {
    #[derive(Deserialize)]
    struct Config {
        name: String,
    }
    let found = source_of(graph, tensor).map(constant);
    let text = found.transpose()?.flatten().and_then(|found| found.bytes);
    let configs = text.map(serde_json::from_slice::<Vec<Config>>);
    let configs = configs.and_then(std::result::Result::ok);
    Ok(configs.map(|all| all.into_iter().map(|one| one.name).collect()))
}

/// The words of four bytes.
fn words(bytes: &[u8]) -> impl Iterator<Item = u32> + '_ {
    let words = bytes.chunks_exact(4);
    words.filter_map(|bytes| Some(u32::from_le_bytes(bytes.try_into().ok()?)))
}

/// Packed varints; what follows a broken one is left out.
fn varints(packed: &[u8]) -> Vec<i64> {
    let (mut found, mut number, mut shift) = (Vec::new(), 0_u64, 0_u32);
    for &byte in packed {
        number |= u64::from(byte & 0x7f).checked_shl(shift).unwrap_or(0);
        shift += 7;
        if byte < 0x80 {
            found.push(number as i64);
            (number, shift) = (0, 0);
        }
    }
    found
}

/// As TensorFlow reads fewer values than there are elements: the last one is repeated.
fn filled(mut values: Vec<i64>, count: i64) -> Option<Vec<i64>> {
    let count = usize::try_from(count).ok()?;
    if values.len() > count {
        return None;
    }
    let last = values.last().copied().unwrap_or(0);
    values.resize(count, last);
    Some(values)
}

/// Exactly `count` values, or none.
fn whole(values: impl Iterator<Item = i64>, count: i64) -> Option<Vec<i64>> {
    let values: Vec<i64> = values.collect();
    (values.len() as i64 == count).then_some(values)
}
