//! Views of TensorFlow's messages: GraphDef, NodeDef, FunctionDef, OpList. Names and nested
//! messages borrow from the input.

use super::wire::{last_bytes, put_bytes, Field, Fields, Value};
use mx_rec_kernels::{Error, Kind, Result};
use std::cell::OnceCell;
use std::collections::hash_map::Entry;
use std::collections::HashMap;
use std::ops::Range;

/// Fields of NodeDef.
const NAME: u32 = 1;
const OP: u32 = 2;
const INPUT: u32 = 3;
const DEVICE: u32 = 4;
const ATTR: u32 = 5;

/// One node of a graph or of a function's body.
#[derive(Clone, Debug)]
pub struct Node<'a> {
    /// Its name.
    pub name: &'a str,
    /// The type of its op.
    pub op: &'a str,
    /// The NodeDef.
    pub bytes: &'a [u8],
    inputs: Range<usize>,
}

/// What an input of a node names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum InputSource {
    /// The index of a node in [`Graph::nodes`].
    Node(usize),
    /// No node of the graph has this name.
    Missing,
    /// Several nodes of the graph have this name.
    Ambiguous,
}

/// One input of a node.
#[derive(Clone, Copy, Debug)]
pub struct NodeInput<'a> {
    /// The name of the node that it comes from.
    pub node: &'a str,
    /// Which output of that node; `None` for a control input.
    pub output: Option<u64>,
    /// The node itself.
    pub source: InputSource,
}

impl InputSource {
    /// The index of the node; `None` if there is none, or several.
    pub fn at(self) -> Option<usize> {
        match self {
            Self::Node(at) => Some(at),
            Self::Missing | Self::Ambiguous => None,
        }
    }
}

impl NodeInput<'_> {
    /// Whether it is a control input.
    pub fn is_control(&self) -> bool {
        self.output.is_none()
    }

    /// The index of its node, and which output of that it is; `None` for a control input and for
    /// one whose node is not known.
    pub(super) fn place(&self) -> Option<(usize, u64)> {
        Some((self.source.at()?, self.output?))
    }

    /// The full name of the tensor, `node:0`.
    pub fn tensor(&self) -> String {
        match self.output {
            Some(output) => format!("{}:{output}", self.node),
            None => format!("^{}", self.node),
        }
    }
}

/// Says the static shape of an output of a node, by the node's name: a size or `None` for each
/// dimension, `None` for an unknown rank.
pub type ShapeOf<'a> = dyn Fn(&str, u64) -> Option<Vec<Option<i64>>> + 'a;

/// A GraphDef.
#[derive(Clone)]
pub struct Graph<'a> {
    /// All nodes, in the order of the GraphDef.
    pub nodes: Vec<Node<'a>>,
    /// FunctionDefs of the library.
    pub functions: Vec<&'a [u8]>,
    /// The fields with versions, tags included.
    versions: Vec<&'a [u8]>,
    inputs: Vec<NodeInput<'a>>,
    by_name: HashMap<&'a str, InputSource>,
    /// For each node the readers of its outputs, once something asked for them: the node, and which
    /// of its inputs it is.
    pub(super) consumers: OnceCell<Vec<Vec<(usize, usize)>>>,
    /// Knows shapes that no attribute of a node states.
    pub(super) shape_of: Option<&'a ShapeOf<'a>>,
}

impl<'a> Graph<'a> {
    /// Reads a serialized GraphDef. Inputs from missing nodes and repeated names are accepted; see
    /// [`InputSource`].
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes are not a GraphDef.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let mut graph = Self {
            nodes: Vec::new(),
            functions: Vec::new(),
            versions: Vec::new(),
            inputs: Vec::new(),
            by_name: HashMap::new(),
            consumers: OnceCell::new(),
            shape_of: None,
        };
        for field in Fields::new("GraphDef", bytes) {
            let field = field?;
            match (field.number, field.value) {
                (1, Value::Bytes(node)) => {
                    let node = read_node(node, &mut graph.inputs)?;
                    graph.nodes.push(node);
                }
                (2, Value::Bytes(library)) => {
                    for field in Fields::new("FunctionDefLibrary", library) {
                        let field = field?;
                        if field.number == 1 {
                            graph.functions.extend(field.bytes());
                        }
                    }
                }
                (3 | 4, _) => graph.versions.push(field.raw),
                _ => {}
            }
        }
        graph.by_name.reserve(graph.nodes.len());
        for (at, node) in graph.nodes.iter().enumerate() {
            match graph.by_name.entry(node.name) {
                Entry::Vacant(place) => {
                    place.insert(InputSource::Node(at));
                }
                Entry::Occupied(mut place) => {
                    place.insert(InputSource::Ambiguous);
                }
            }
        }
        for input in &mut graph.inputs {
            if let Some(&source) = graph.by_name.get(input.node) {
                input.source = source;
            }
        }
        Ok(graph)
    }

    /// The same, with what knows shapes that no attribute of a node states.
    pub(super) fn with_shapes(self, shape_of: Option<&'a ShapeOf<'a>>) -> Self {
        Self { shape_of, ..self }
    }

    /// The node at an index that this graph returned.
    ///
    /// # Errors
    /// `Internal` for any other index.
    pub fn node(&self, at: usize) -> Result<&Node<'a>> {
        item(&self.nodes, at)
    }

    /// All inputs of a node, control inputs included, in their order.
    pub fn inputs(&self, node: &Node<'a>) -> &[NodeInput<'a>] {
        self.inputs.get(node.inputs.clone()).unwrap_or_default()
    }

    /// The inputs of a node that are no control inputs.
    pub fn data(&self, node: &Node<'a>) -> impl Iterator<Item = &NodeInput<'a>> {
        let inputs = self.inputs(node).iter();
        inputs.filter(|input| !input.is_control())
    }

    /// The data input number `place` of a node; control inputs do not count.
    pub fn data_input(&self, node: &Node<'a>, place: usize) -> Option<&NodeInput<'a>> {
        self.data(node).nth(place)
    }

    /// The control inputs of a node.
    pub(super) fn waits(&self, node: &Node<'a>) -> impl Iterator<Item = &NodeInput<'a>> {
        let inputs = self.inputs(node).iter();
        inputs.filter(|input| input.is_control())
    }

    /// The names of the nodes that a node waits for.
    pub(super) fn waited(&self, node: &Node<'a>) -> impl Iterator<Item = String> + '_ {
        self.waits(node).map(|input| input.node.to_owned())
    }

    /// The nodes that a node reads or waits for.
    pub(super) fn sources(&self, node: &Node<'a>) -> impl Iterator<Item = usize> + '_ {
        let inputs = self.inputs(node).iter();
        inputs.filter_map(|input| input.source.at())
    }

    /// The names of nodes.
    ///
    /// # Errors
    /// `Internal` for an index that this graph has not returned.
    pub(super) fn names(&self, nodes: impl IntoIterator<Item = usize>) -> Result<Vec<String>> {
        let names = nodes.into_iter().map(|at| self.node(at));
        names.map(|node| Ok(node?.name.to_owned())).collect()
    }

    /// The first output of a node, as one that reads it has it.
    ///
    /// # Errors
    /// `Internal` for an index that this graph has not returned.
    pub(super) fn output_of(&self, at: usize) -> Result<NodeInput<'a>> {
        Ok(NodeInput {
            node: self.node(at)?.name,
            output: Some(0),
            source: InputSource::Node(at),
        })
    }

    /// The node of this name.
    pub fn find(&self, name: &str) -> InputSource {
        self.by_name
            .get(name)
            .copied()
            .unwrap_or(InputSource::Missing)
    }

    /// The number of bytes of versions in each GraphDef that [`Graph::with_nodes`] returns.
    pub fn versions_size(&self) -> usize {
        self.versions.iter().map(|version| version.len()).sum()
    }

    /// A GraphDef of these NodeDefs and FunctionDefs with the versions of this graph.
    pub fn with_nodes(&self, nodes: &[Vec<u8>], functions: &[&[u8]]) -> Vec<u8> {
        let mut bytes = Vec::new();
        for node in nodes {
            put_bytes(&mut bytes, 1, node);
        }
        if !functions.is_empty() {
            let mut library = Vec::new();
            for function in functions {
                put_bytes(&mut library, 1, function);
            }
            put_bytes(&mut bytes, 2, &library);
        }
        for version in &self.versions {
            bytes.extend_from_slice(version);
        }
        bytes
    }
}

/// The element at an index that must exist.
///
/// # Errors
/// `Internal` if it does not.
pub(super) fn item<T>(items: &[T], at: usize) -> Result<&T> {
    items.get(at).ok_or_else(|| {
        Error::new(Kind::Internal, "the graph pass used an index out of range").with("index", at)
    })
}

fn read_node<'a>(bytes: &'a [u8], inputs: &mut Vec<NodeInput<'a>>) -> Result<Node<'a>> {
    let start = inputs.len();
    let (mut name, mut op) = ("", "");
    for field in Fields::new("NodeDef", bytes) {
        let field = field?;
        match field.number {
            NAME => name = field.text("NodeDef")?.unwrap_or(name),
            OP => op = field.text("NodeDef")?.unwrap_or(op),
            INPUT => inputs.extend(field.text("NodeDef")?.map(read_input)),
            _ => {}
        }
    }
    Ok(Node {
        name,
        op,
        bytes,
        inputs: start..inputs.len(),
    })
}

/// Reads `^node`, `node` or `node:output`.
fn read_input(text: &str) -> NodeInput<'_> {
    let (node, output) = match text.strip_prefix('^') {
        Some(node) => (node, None),
        None => match text.rsplit_once(':') {
            Some((node, digits)) if digits.bytes().all(|byte| byte.is_ascii_digit()) => {
                match digits.parse() {
                    Ok(output) => (node, Some(output)),
                    Err(_) => (text, Some(0)),
                }
            }
            _ => (text, Some(0)),
        },
    };
    NodeInput {
        node,
        output,
        source: InputSource::Missing,
    }
}

impl<'a> Node<'a> {
    /// Reads one NodeDef; its inputs are skipped.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes are no NodeDef.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        read_node(bytes, &mut Vec::new())
    }

    /// The AttrValue of this name. Of several entries the last counts, as in protobuf.
    ///
    /// # Errors
    /// `InvalidArgument` if an attribute cannot be read.
    pub fn attr(&self, name: &str) -> Result<Option<&'a [u8]>> {
        let mut found = None;
        for attr in self.attrs() {
            let (key, value) = attr?;
            if key == name {
                found = Some(value);
            }
        }
        Ok(found)
    }

    /// All attributes, name and AttrValue.
    pub(super) fn attrs(&self) -> impl Iterator<Item = Result<(&'a str, &'a [u8])>> {
        Fields::new("NodeDef", self.bytes).filter_map(|field| match field {
            Ok(field) if field.number == ATTR => field.bytes().map(entry),
            Ok(_) => None,
            Err(error) => Some(Err(error)),
        })
    }

    /// The boolean of this name, false if there is none.
    ///
    /// # Errors
    /// `InvalidArgument` if an attribute cannot be read.
    pub fn flag(&self, name: &str) -> Result<bool> {
        Ok(self.number(name, 5)?.is_some_and(|number| number != 0))
    }

    /// The integer of this name.
    ///
    /// # Errors
    /// `InvalidArgument` if an attribute cannot be read.
    pub fn int(&self, name: &str) -> Result<Option<i64>> {
        Ok(self.number(name, 3)?.map(|number| number as i64))
    }

    /// The data type of this name, as the number of TensorFlow's enum.
    ///
    /// # Errors
    /// `InvalidArgument` if an attribute cannot be read.
    pub fn dtype(&self, name: &str) -> Result<Option<u64>> {
        self.number(name, 6)
    }

    fn number(&self, name: &str, number: u32) -> Result<Option<u64>> {
        let mut found = None;
        for field in Fields::new("AttrValue", self.attr(name)?.unwrap_or_default()) {
            let field = field?;
            if field.number == number {
                found = field.varint().or(found);
            }
        }
        Ok(found)
    }

    /// The bytes of this name, empty if there are none.
    ///
    /// # Errors
    /// `InvalidArgument` if an attribute cannot be read.
    pub fn string(&self, name: &str) -> Result<&'a [u8]> {
        last_bytes("AttrValue", self.attr(name)?.unwrap_or_default(), 2)
    }

    /// The device that it is asked to run on, empty if it is not.
    ///
    /// # Errors
    /// `InvalidArgument` if the fields cannot be read.
    pub fn device(&self) -> Result<&'a [u8]> {
        last_bytes("NodeDef", self.bytes, DEVICE)
    }

    /// The length of the list of types of this name.
    ///
    /// # Errors
    /// `InvalidArgument` if an attribute cannot be read.
    pub fn count_types(&self, name: &str) -> Result<u64> {
        let mut count = 0;
        for list in Fields::new("AttrValue", self.attr(name)?.unwrap_or_default()) {
            let list = list?;
            let Some(list) = list.bytes().filter(|_| list.number == 1) else {
                continue;
            };
            for field in Fields::new("AttrValue.ListValue", list) {
                let field = field?;
                count += match field.value {
                    _ if field.number != 6 => 0,
                    Value::Varint(_) => 1,
                    // Packed varints: the last byte of each has its upper bit clear.
                    Value::Bytes(packed) => {
                        packed.iter().filter(|&&byte| byte < 0x80).count() as u64
                    }
                    Value::Fixed(_) => 0,
                };
            }
        }
        Ok(count)
    }

    /// Names of all functions in its attributes, at any depth.
    ///
    /// # Errors
    /// `InvalidArgument` if an attribute cannot be read.
    pub fn functions(&self) -> Result<Vec<&'a str>> {
        let mut found = Vec::new();
        let mut values = Vec::new();
        for attr in self.attrs() {
            values.push(attr?.1);
            while let Some(value) = values.pop() {
                for field in Fields::new("AttrValue", value) {
                    let field = field?;
                    match (field.number, field.bytes()) {
                        (10, Some(function)) => {
                            read_function_value(function, &mut found, &mut values)?;
                        }
                        (1, Some(list)) => {
                            for field in Fields::new("AttrValue.ListValue", list) {
                                let field = field?;
                                if let Some(function) = field.bytes().filter(|_| field.number == 9)
                                {
                                    read_function_value(function, &mut found, &mut values)?;
                                }
                            }
                        }
                        _ => {}
                    }
                }
            }
        }
        Ok(found)
    }

    /// The NodeDef byte for byte, without its device, its `_class` (colocation) and the shapes of
    /// its outputs (`_output_shapes`).
    ///
    /// # Errors
    /// `InvalidArgument` if an attribute cannot be read.
    pub fn unplaced(&self) -> Result<Vec<u8>> {
        let mut bytes = Vec::with_capacity(self.bytes.len());
        for field in Fields::new("NodeDef", self.bytes) {
            let field = field?;
            let dropped = match field.number {
                DEVICE => true,
                ATTR => match field.bytes() {
                    Some(attr) => matches!(entry(attr)?.0, "_class" | "_output_shapes"),
                    None => false,
                },
                _ => false,
            };
            if !dropped {
                bytes.extend_from_slice(field.raw);
            }
        }
        Ok(bytes)
    }
}

/// Reads an entry of a map from names to AttrValues: name and AttrValue.
fn entry(bytes: &[u8]) -> Result<(&str, &[u8])> {
    let (mut key, mut value): (&str, &[u8]) = ("", &[]);
    for field in Fields::new("NodeDef.AttrEntry", bytes) {
        let field = field?;
        match field.number {
            1 => key = field.text("NodeDef.AttrEntry")?.unwrap_or(key),
            2 => value = field.bytes().unwrap_or(value),
            _ => {}
        }
    }
    Ok((key, value))
}

/// Reads a NameAttrList: appends its function to `found`, and its AttrValues to `values`.
fn read_function_value<'a>(
    bytes: &'a [u8],
    found: &mut Vec<&'a str>,
    values: &mut Vec<&'a [u8]>,
) -> Result<()> {
    let mut name = "";
    for field in Fields::new("NameAttrList", bytes) {
        let field = field?;
        match (field.number, field.bytes()) {
            (1, Some(_)) => name = field.text("NameAttrList")?.unwrap_or(name),
            (2, Some(attr)) => values.push(entry(attr)?.1),
            _ => {}
        }
    }
    found.push(name);
    Ok(())
}

/// Reads an OpDef: the op type, and whether it is stateful or takes a reference, which it may
/// change.
fn read_op(bytes: &[u8]) -> Result<(&str, bool)> {
    let (mut name, mut stateful) = ("", false);
    for field in Fields::new("OpDef", bytes) {
        let field = field?;
        match field.number {
            1 => name = field.text("OpDef")?.unwrap_or(name),
            17 => stateful |= field.varint().is_some_and(|number| number != 0),
            2 => {
                for field in Fields::new("OpDef.ArgDef", field.bytes().unwrap_or_default()) {
                    let field = field?;
                    stateful |= field.number == 16 && field.varint().is_some_and(|one| one != 0);
                }
            }
            _ => {}
        }
    }
    Ok((name, stateful))
}

/// Reads a serialized OpList: op type -> whether it is stateful, or may change a variable that it
/// is given.
///
/// # Errors
/// `InvalidArgument` if the bytes are no OpList.
pub fn read_ops(bytes: &[u8]) -> Result<HashMap<&str, bool>> {
    let mut ops = HashMap::new();
    for field in Fields::new("OpList", bytes) {
        let field = field?;
        if let Some(op) = field.bytes().filter(|_| field.number == 1) {
            let (name, stateful) = read_op(op)?;
            *ops.entry(name).or_insert(stateful) |= stateful;
        }
    }
    Ok(ops)
}

/// A function of the library.
#[derive(Clone, Debug)]
pub struct Function<'a> {
    /// Its name.
    pub name: &'a str,
    /// Whether its signature is marked as stateful.
    pub stateful: bool,
    /// The FunctionDef.
    pub bytes: &'a [u8],
}

impl<'a> Function<'a> {
    /// Reads a serialized FunctionDef; its body is skipped.
    ///
    /// # Errors
    /// `InvalidArgument` if the bytes are no FunctionDef.
    pub fn parse(bytes: &'a [u8]) -> Result<Self> {
        let (name, stateful) = read_op(last_bytes("FunctionDef", bytes, 1)?)?;
        Ok(Self {
            name,
            stateful,
            bytes,
        })
    }

    /// The nodes of its body.
    ///
    /// # Errors
    /// `InvalidArgument` if a node cannot be read.
    pub fn body(&self) -> impl Iterator<Item = Result<Node<'a>>> {
        let is_node = |field: &Field<'a>| field.bytes().filter(|_| field.number == 3);
        Fields::new("FunctionDef", self.bytes).filter_map(move |field| match field {
            Ok(field) => is_node(&field).map(Node::parse),
            Err(error) => Some(Err(error)),
        })
    }
}
