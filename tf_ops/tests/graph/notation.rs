//! Graphs as text, one node a line, and back.
//!
//!     name = Op(input, input:1, ^control) @device {flag=true, n=3, T=int64, s="text"}
//!     name = Op(input) {types=[int64, string], f=&function}
//!
//! The value of a Const of int32 is written `scalar[1]` or `vector[1, 2]`, that of the
//! configurations of tables of these names `configs[user, item]`, shapes
//! `shapes[6x5x4, ?x4, ?]`, where the last has no known rank. An attribute written `<0a0b>` is its
//! AttrValue's bytes; one named `+99` is a field of NodeDef with that number. `function NAME` or
//! `function NAME stateful` opens a function; its nodes follow, indented.

use mx_rec_tf_ops::graph::graph_def::{Function, Graph, Node};
use mx_rec_tf_ops::graph::wire::{put_bytes, put_number, Fields, Value};
use std::fmt::Write;

const TYPES: [(&str, u64); 6] = [
    ("float", 1),
    ("int32", 3),
    ("string", 7),
    ("int64", 9),
    ("bool", 10),
    ("resource", 20),
];

/// One node as text.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct NodeText {
    pub(crate) name: String,
    pub(crate) op: String,
    pub(crate) inputs: Vec<String>,
    pub(crate) device: Option<String>,
    pub(crate) attrs: Vec<(String, String)>,
}

/// One function as text.
#[derive(Clone, Debug, Default)]
pub(crate) struct FunctionText {
    pub(crate) name: String,
    pub(crate) stateful: bool,
    pub(crate) nodes: Vec<NodeText>,
}

/// A graph as text.
#[derive(Clone, Debug, Default)]
pub(crate) struct GraphText {
    pub(crate) nodes: Vec<NodeText>,
    pub(crate) functions: Vec<FunctionText>,
}

impl NodeText {
    pub(crate) fn parse(line: &str) -> Self {
        let (name, rest) = line
            .split_once(" = ")
            .unwrap_or_else(|| panic!("no `name = Op`: {line}"));
        let (rest, attrs) = match rest.split_once(" {") {
            Some((rest, attrs)) => (rest, attrs.trim_end_matches('}')),
            None => (rest, ""),
        };
        let (rest, device) = match rest.split_once(" @") {
            Some((rest, device)) => (rest, Some(device.to_owned())),
            None => (rest, None),
        };
        let (op, inputs) = rest.split_once('(').map_or((rest, ""), |(op, inputs)| {
            (op, inputs.trim_end_matches(')'))
        });
        Self {
            name: name.trim().to_owned(),
            op: op.to_owned(),
            inputs: split(inputs),
            device,
            attrs: split(attrs)
                .iter()
                .map(|attr| attr.split_once('=').expect("attributes are key=value"))
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .collect(),
        }
    }

    /// The NodeDef.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        put_bytes(&mut bytes, 1, self.name.as_bytes());
        put_bytes(&mut bytes, 2, self.op.as_bytes());
        for input in &self.inputs {
            put_bytes(&mut bytes, 3, input.as_bytes());
        }
        if let Some(device) = &self.device {
            put_bytes(&mut bytes, 4, device.as_bytes());
        }
        for (key, value) in &self.attrs {
            match key.strip_prefix('+') {
                Some(number) => {
                    let number = number.parse().expect("the number of a field");
                    put_bytes(&mut bytes, number, value.as_bytes());
                }
                None => {
                    let mut entry = Vec::new();
                    put_bytes(&mut entry, 1, key.as_bytes());
                    put_bytes(&mut entry, 2, &encode_value(value));
                    put_bytes(&mut bytes, 5, &entry);
                }
            }
        }
        bytes
    }

    /// The node without what a move drops.
    pub(crate) fn unplaced(mut self) -> Self {
        self.device = None;
        self.attrs
            .retain(|(key, _)| key != "_class" && key != "_output_shapes");
        self
    }
}

impl GraphText {
    pub(crate) fn parse(text: &str) -> Self {
        let mut graph = Self::default();
        for line in text.lines() {
            if line.trim().is_empty() || line.starts_with('#') {
                continue;
            }
            if let Some(function) = line.strip_prefix("function ") {
                let (name, flags) = function.split_once(' ').unwrap_or((function, ""));
                graph.functions.push(FunctionText {
                    name: name.to_owned(),
                    stateful: flags == "stateful",
                    nodes: Vec::new(),
                });
            } else if line.starts_with(' ') {
                let function = graph
                    .functions
                    .last_mut()
                    .expect("a function before a body");
                function.nodes.push(NodeText::parse(line));
            } else {
                graph.nodes.push(NodeText::parse(line));
            }
        }
        graph
    }

    /// The GraphDef.
    pub(crate) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        for node in &self.nodes {
            put_bytes(&mut bytes, 1, &node.encode());
        }
        let mut library = Vec::new();
        for function in &self.functions {
            let (mut signature, mut definition) = (Vec::new(), Vec::new());
            put_bytes(&mut signature, 1, function.name.as_bytes());
            if function.stateful {
                put_number(&mut signature, 17, 1);
            }
            put_bytes(&mut definition, 1, &signature);
            for node in &function.nodes {
                put_bytes(&mut definition, 3, &node.encode());
            }
            put_bytes(&mut library, 1, &definition);
        }
        put_bytes(&mut bytes, 2, &library);
        let mut versions = Vec::new();
        put_number(&mut versions, 1, 134);
        put_bytes(&mut bytes, 4, &versions);
        bytes
    }
}

/// A GraphDef as text.
pub(crate) fn render(bytes: &[u8]) -> String {
    let graph = Graph::parse(bytes).expect("a GraphDef");
    let mut text = String::new();
    for node in &graph.nodes {
        writeln!(text, "{}", render_node(node)).expect("text");
    }
    for function in &graph.functions {
        let function = Function::parse(function).expect("a FunctionDef");
        let stateful = if function.stateful { " stateful" } else { "" };
        writeln!(text, "function {}{stateful}", function.name).expect("text");
        for node in function.body() {
            writeln!(text, "  {}", render_node(&node.expect("a NodeDef"))).expect("text");
        }
    }
    text
}

fn render_node(node: &Node<'_>) -> String {
    let mut shown = NodeText {
        name: node.name.to_owned(),
        op: node.op.to_owned(),
        ..NodeText::default()
    };
    for field in Fields::new("NodeDef", node.bytes) {
        let field = field.expect("a field");
        let content = field.bytes().unwrap_or_default();
        let text = || String::from_utf8(content.to_vec()).expect("text");
        match field.number {
            1 | 2 => {}
            3 => shown.inputs.push(text()),
            4 => shown.device = Some(text()),
            5 => {
                let fields: Vec<&[u8]> = Fields::new("entry", content)
                    .filter_map(|field| field.expect("a field").bytes())
                    .collect();
                let key = String::from_utf8(fields[0].to_vec()).expect("text");
                shown.attrs.push((key, render_value(fields[1])));
            }
            other => shown.attrs.push((format!("+{other}"), text())),
        }
    }
    let mut text = format!("{} = {}", shown.name, shown.op);
    if !shown.inputs.is_empty() {
        write!(text, "({})", shown.inputs.join(", ")).expect("text");
    }
    if let Some(device) = shown.device {
        write!(text, " @{device}").expect("text");
    }
    if !shown.attrs.is_empty() {
        let attrs: Vec<String> = shown
            .attrs
            .iter()
            .map(|(key, value)| format!("{key}={value}"))
            .collect();
        write!(text, " {{{}}}", attrs.join(", ")).expect("text");
    }
    text
}

fn encode_value(text: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    if let Some(hex) = text.strip_prefix('<').and_then(|hex| hex.strip_suffix('>')) {
        let pairs = (0..hex.len()).step_by(2);
        return pairs
            .map(|at| u8::from_str_radix(&hex[at..at + 2], 16).expect("hex digits"))
            .collect();
    }
    let bracketed = |name: &str| {
        text.strip_prefix(name)?
            .strip_prefix('[')?
            .strip_suffix(']')
    };
    if let Some(scalar) = bracketed("scalar") {
        put_bytes(&mut bytes, 8, &encode_tensor(&[], scalar));
    } else if let Some(vector) = bracketed("vector") {
        let elements = split(vector).len() as u64;
        put_bytes(&mut bytes, 8, &encode_tensor(&[elements], vector));
    } else if let Some(names) = bracketed("configs") {
        let names = split(names);
        let configs = names
            .iter()
            .map(|name| format!(r#"{{"dim": 4, "name": "{name}"}}"#));
        let configs: Vec<String> = configs.collect();
        let text = format!("[{}]", configs.join(", "));
        put_bytes(
            &mut bytes,
            8,
            &encode_values(4, &[text.len() as u64], text.as_bytes()),
        );
    } else if let Some(shapes) = bracketed("shapes") {
        let mut list = Vec::new();
        for shape in split(shapes) {
            put_bytes(&mut list, 7, &encode_shape(&shape));
        }
        put_bytes(&mut bytes, 1, &list);
    } else if let Some(types) = text
        .strip_prefix('[')
        .and_then(|types| types.strip_suffix(']'))
    {
        let packed: Vec<u8> = split(types)
            .iter()
            .map(|name| dtype(name).unwrap_or_else(|| panic!("no type {name}")) as u8)
            .collect();
        let mut list = Vec::new();
        put_bytes(&mut list, 6, &packed);
        put_bytes(&mut bytes, 1, &list);
    } else if let Some(string) = text.strip_prefix('"') {
        put_bytes(&mut bytes, 2, string.trim_end_matches('"').as_bytes());
    } else if let Some(function) = text.strip_prefix('&') {
        let mut value = Vec::new();
        put_bytes(&mut value, 1, function.as_bytes());
        put_bytes(&mut bytes, 10, &value);
    } else if let Some(number) = dtype(text) {
        put_number(&mut bytes, 6, number);
    } else if let Ok(flag) = text.parse::<bool>() {
        put_number(&mut bytes, 5, u64::from(flag));
    } else {
        let number: i64 = text.parse().unwrap_or_else(|_| panic!("no value: {text}"));
        put_number(&mut bytes, 3, number as u64);
    }
    bytes
}

/// A TensorProto of int32.
fn encode_tensor(dims: &[u64], elements: &str) -> Vec<u8> {
    let elements = split(elements).into_iter().flat_map(|element| {
        let element: i32 = element.parse().expect("an integer");
        element.to_le_bytes()
    });
    encode_values(3, dims, &elements.collect::<Vec<u8>>())
}

/// A TensorProto of a type.
fn encode_values(dtype: u64, dims: &[u64], content: &[u8]) -> Vec<u8> {
    let (mut shape, mut tensor) = (Vec::new(), Vec::new());
    for &size in dims {
        let mut dim = Vec::new();
        put_number(&mut dim, 1, size);
        put_bytes(&mut shape, 2, &dim);
    }
    put_number(&mut tensor, 1, dtype);
    put_bytes(&mut tensor, 2, &shape);
    put_bytes(&mut tensor, 4, content);
    tensor
}

/// A TensorShapeProto.
fn encode_shape(text: &str) -> Vec<u8> {
    let mut shape = Vec::new();
    if text == "?" {
        put_number(&mut shape, 3, 1);
        return shape;
    }
    for size in text.split('x') {
        let mut dim = Vec::new();
        let size = size.parse().unwrap_or(-1_i64);
        put_number(&mut dim, 1, size as u64);
        put_bytes(&mut shape, 2, &dim);
    }
    shape
}

fn render_value(bytes: &[u8]) -> String {
    let fields: Vec<_> = Fields::new("AttrValue", bytes)
        .map(|field| field.map(|field| (field.number, field.value)))
        .collect();
    let shown = match fields.as_slice() {
        [Ok((1, Value::Bytes(list)))] => match Fields::new("list", list).next() {
            Some(Ok(types)) if types.number == 6 => types
                .bytes()
                .unwrap_or_default()
                .iter()
                .map(|&number| type_name(u64::from(number)))
                .collect::<Option<Vec<&str>>>()
                .map(|names| format!("[{}]", names.join(", "))),
            _ => None,
        },
        [Ok((2, Value::Bytes(text)))] => String::from_utf8(text.to_vec())
            .ok()
            .map(|text| format!("\"{text}\"")),
        [Ok((3, Value::Varint(number)))] => Some((*number as i64).to_string()),
        [Ok((5, Value::Varint(flag)))] => Some((*flag != 0).to_string()),
        [Ok((6, Value::Varint(number)))] => type_name(*number).map(str::to_owned),
        [Ok((10, Value::Bytes(function)))] => match Fields::new("function", function).next() {
            Some(Ok(name)) => name
                .bytes()
                .map(|name| format!("&{}", String::from_utf8_lossy(name))),
            _ => None,
        },
        _ => None,
    };
    let hex = || {
        bytes
            .iter()
            .map(|byte| format!("{byte:02x}"))
            .collect::<String>()
    };
    shown
        .filter(|shown| encode_value(shown) == bytes)
        .unwrap_or_else(|| format!("<{}>", hex()))
}

fn dtype(name: &str) -> Option<u64> {
    TYPES
        .iter()
        .find(|(known, _)| *known == name)
        .map(|(_, number)| *number)
}

fn type_name(number: u64) -> Option<&'static str> {
    TYPES
        .iter()
        .find(|(_, known)| *known == number)
        .map(|(name, _)| *name)
}

/// Splits at commas that stand outside of brackets.
fn split(text: &str) -> Vec<String> {
    let (mut parts, mut depth) = (vec![String::new()], 0);
    for character in text.chars() {
        match character {
            '[' => depth += 1,
            ']' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(String::new());
                continue;
            }
            _ => {}
        }
        parts.last_mut().expect("a part").push(character);
    }
    parts
        .iter()
        .map(|part| part.trim().to_owned())
        .filter(|part| !part.is_empty())
        .collect()
}

/// An OpList of the ops that the test graphs use. `Unregistered` is not in it.
pub(crate) fn op_list() -> Vec<u8> {
    const STATELESS: &str = "\
        Add AsString Cast Concat Const DatasetToSingleElement Enter Exit Floor GatherV2 \
        GreaterEqual Identity If Less LoopCond MakeDataset Merge Mul MxRecBagDivisors \
        MxRecBagEnds MxRecBagWeights MxRecDistinctSplit MxRecPackGradients \
        MxRecRaggedBagEnds \
        MxRecSparseBagEnds MxRecSparseBagsMany MxRecStitch NextIteration NoOp \
        Pack PartitionedCall \
        Placeholder PlaceholderWithDefault RangeDataset Reshape SparseToDense \
        SplitV StatelessIf StatelessWhile StridedSlice StringToHashBucketFast Switch Where";
    const STATEFUL: &str = "\
        Assert HashTableV2 Iterator IteratorFromStringHandleV2 IteratorGetNext \
        IteratorGetNextSync IteratorToStringHandle IteratorV2 LookupTableFindV2 \
        MakeIterator MxRecAdmit MxRecFind \
        MxRecIdOffset MxRecObserve MxRecPull MxRecPush MxRecRead MxRecRestorePooled MxRecTable \
        OneShotIterator \
        RandomUniformInt ReadVariableOp SerializeIterator StatefulPartitionedCall \
        VarHandleOp VariableV2 While";
    let stateless = STATELESS.split_whitespace().map(|name| (name, false));
    let ops = stateless.chain(STATEFUL.split_whitespace().map(|name| (name, true)));
    let mut bytes = Vec::new();
    for (name, stateful) in ops {
        let mut op = Vec::new();
        put_bytes(&mut op, 1, name.as_bytes());
        if stateful {
            put_number(&mut op, 17, 1);
        }
        put_bytes(&mut bytes, 1, &op);
    }
    bytes
}
