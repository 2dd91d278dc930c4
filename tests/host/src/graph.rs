//! Graphs: nodes, their outputs, and what is known of shapes.

use crate::library::load_plugin;
use crate::status::{Result, Status};
use crate::tensor::{Element, Tensor};
use std::ffi::{c_int, CStr, CString};
use std::marker::PhantomData;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorflow_sys_runtime as tf;

/// What is known of a shape: nothing, or its rank and sizes, -1 for an unknown one.
pub type Shape = Option<Vec<i64>>;

/// An owned graph. It names its nodes itself.
pub struct Graph {
    raw: *mut tf::TF_Graph,
    /// How many nodes were begun.
    nodes: AtomicUsize,
}

// SAFETY: TensorFlow's graphs have a lock of their own.
unsafe impl Send for Graph {}
// SAFETY: as above.
unsafe impl Sync for Graph {}

/// A node of a graph.
#[derive(Clone, Copy)]
pub struct Node<'g> {
    raw: *mut tf::TF_Operation,
    graph: PhantomData<&'g Graph>,
}

// SAFETY: a node is never changed once it is made, and lives as long as its graph.
unsafe impl Send for Node<'_> {}
// SAFETY: as above.
unsafe impl Sync for Node<'_> {}

/// An output of a node.
#[derive(Clone, Copy)]
pub struct Output<'g> {
    node: Node<'g>,
    index: c_int,
}

/// A node that is being made.
pub struct NodeBuilder<'g> {
    raw: *mut tf::TF_OperationDescription,
    graph: PhantomData<&'g Graph>,
}

impl Default for Graph {
    fn default() -> Self {
        Graph::new()
    }
}

impl Graph {
    /// An empty graph.
    pub fn new() -> Graph {
        load_plugin();
        Graph {
            // SAFETY: takes no argument.
            raw: unsafe { tf::TF_NewGraph() },
            nodes: AtomicUsize::new(0),
        }
    }

    pub(crate) fn raw(&self) -> *mut tf::TF_Graph {
        self.raw
    }

    /// Begins a node of type `op`.
    pub fn node(&self, op: &str) -> NodeBuilder<'_> {
        let name = loop {
            let number = self.nodes.fetch_add(1, Ordering::Relaxed);
            let name = format!("{op}_{number}");
            // A graph that was imported has names already.
            if self.find(&name).is_none() {
                break text(&name);
            }
        };
        let op = text(op);
        // SAFETY: the graph is alive, the texts end with a zero and are copied.
        let raw = unsafe { tf::TF_NewOperation(self.raw, op.as_ptr(), name.as_ptr()) };
        NodeBuilder {
            raw,
            graph: PhantomData,
        }
    }

    /// A constant.
    pub fn constant(&self, tensor: &Tensor) -> Output<'_> {
        let status = Status::new();
        let builder = self.node("Const");
        // SAFETY: builder, tensor and status are alive; the tensor is copied or referred to.
        unsafe {
            let dtype = tf::TF_TensorType(tensor.raw());
            tf::TF_SetAttrType(builder.raw, c"dtype".as_ptr(), dtype);
            tf::TF_SetAttrTensor(builder.raw, c"value".as_ptr(), tensor.raw(), status.raw());
        }
        status.check().expect("a tensor of values");
        builder.finish().expect("a node without inputs").output(0)
    }

    /// A placeholder of which `shape` is known.
    pub fn placeholder<T: Element>(&self, shape: &Shape) -> Output<'_> {
        let builder = self.node("Placeholder");
        let (dims, rank) = lend(shape);
        // SAFETY: the builder is alive, the sizes are copied.
        unsafe {
            tf::TF_SetAttrType(builder.raw, c"dtype".as_ptr(), T::TYPE);
            tf::TF_SetAttrShape(builder.raw, c"shape".as_ptr(), dims, rank);
        }
        builder.finish().expect("a node without inputs").output(0)
    }

    /// What TensorFlow knows of an output's shape.
    pub fn shape(&self, output: Output<'_>) -> Shape {
        let status = Status::new();
        // SAFETY: the graph is alive and the output of its node; the vector has as many places as
        // the rank says.
        unsafe {
            let rank = tf::TF_GraphGetTensorNumDims(self.raw, output.raw(), status.raw());
            let rank = usize::try_from(rank).ok()?;
            let mut dims = vec![0; rank];
            tf::TF_GraphGetTensorShape(
                self.raw,
                output.raw(),
                dims.as_mut_ptr(),
                rank as c_int,
                status.raw(),
            );
            status.check().expect("the shape of an output");
            Some(dims)
        }
    }

    /// States what else is known of an output's shape.
    ///
    /// # Errors
    /// TensorFlow's, if it contradicts what is known.
    pub fn state_shape(&self, output: Output<'_>, shape: &Shape) -> Result<()> {
        let (status, (dims, rank)) = (Status::new(), lend(shape));
        // SAFETY: the graph is alive and the output of its node; the sizes are copied.
        unsafe { tf::TF_GraphSetTensorShape(self.raw, output.raw(), dims, rank, status.raw()) };
        status.check()
    }

    /// The graph as bytes, a GraphDef.
    ///
    /// # Errors
    /// TensorFlow's.
    pub fn to_bytes(&self) -> Result<Vec<u8>> {
        let status = Status::new();
        // SAFETY: the graph is alive; the buffer is ours, read while it lives and deleted once.
        unsafe {
            let buffer = tf::TF_NewBuffer();
            tf::TF_GraphToGraphDef(self.raw, buffer, status.raw());
            let (data, length) = ((*buffer).data.cast::<u8>(), (*buffer).length);
            let bytes = match data.is_null() {
                true => Vec::new(),
                false => std::slice::from_raw_parts(data, length).to_vec(),
            };
            tf::TF_DeleteBuffer(buffer);
            status.check().map(|()| bytes)
        }
    }

    /// The graph of a GraphDef.
    ///
    /// # Errors
    /// TensorFlow's, for shapes that contradict each other for one.
    pub fn from_bytes(bytes: &[u8]) -> Result<Graph> {
        let (graph, status) = (Graph::new(), Status::new());
        // SAFETY: the bytes are copied; buffer and options are ours and deleted once.
        unsafe {
            let buffer = tf::TF_NewBufferFromString(bytes.as_ptr().cast(), bytes.len());
            let options = tf::TF_NewImportGraphDefOptions();
            tf::TF_GraphImportGraphDef(graph.raw, buffer, options, status.raw());
            tf::TF_DeleteImportGraphDefOptions(options);
            tf::TF_DeleteBuffer(buffer);
        }
        status.check().map(|()| graph)
    }

    /// The node of that name.
    pub fn find(&self, name: &str) -> Option<Node<'_>> {
        let name = text(name);
        // SAFETY: the graph is alive, the text ends with a zero.
        let raw = unsafe { tf::TF_GraphOperationByName(self.raw, name.as_ptr()) };
        (!raw.is_null()).then_some(Node {
            raw,
            graph: PhantomData,
        })
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: owned, deleted once; TensorFlow keeps it while sessions use it.
        unsafe { tf::TF_DeleteGraph(self.raw) }
    }
}

impl<'g> Node<'g> {
    /// Its output number `index`.
    pub fn output(self, index: usize) -> Output<'g> {
        Output {
            node: self,
            index: index as c_int,
        }
    }

    /// Its name.
    pub fn name(self) -> String {
        // SAFETY: the node is alive, and its name lives as long.
        let name = unsafe { CStr::from_ptr(tf::TF_OperationName(self.raw)) };
        name.to_string_lossy().into_owned()
    }

    pub(crate) fn raw(self) -> *mut tf::TF_Operation {
        self.raw
    }
}

impl<'g> Output<'g> {
    /// The node that it is of.
    pub fn node(self) -> Node<'g> {
        self.node
    }

    pub(crate) fn raw(self) -> tf::TF_Output {
        tf::TF_Output {
            oper: self.node.raw,
            index: self.index,
        }
    }
}

impl<'g> NodeBuilder<'g> {
    /// Adds an input.
    pub fn input(self, output: Output<'g>) -> Self {
        // SAFETY: builder and output are alive, of one graph.
        unsafe { tf::TF_AddInput(self.raw, output.raw()) };
        self
    }

    /// Adds an input that is a list.
    pub fn inputs(self, outputs: &[Output<'g>]) -> Self {
        let raw: Vec<tf::TF_Output> = outputs.iter().map(|one| one.raw()).collect();
        // SAFETY: as above; the list is copied.
        unsafe { tf::TF_AddInputList(self.raw, raw.as_ptr(), raw.len() as c_int) };
        self
    }

    /// Has the node run after another one.
    pub fn after(self, node: Node<'g>) -> Self {
        // SAFETY: builder and node are alive, of one graph.
        unsafe { tf::TF_AddControlInput(self.raw, node.raw) };
        self
    }

    /// Sets an attribute of type int.
    pub fn int(self, name: &str, value: i64) -> Self {
        let name = text(name);
        // SAFETY: the builder is alive, the text ends with a zero and is copied.
        unsafe { tf::TF_SetAttrInt(self.raw, name.as_ptr(), value) };
        self
    }

    /// Makes the node, which is good.
    ///
    /// # Panics
    /// If TensorFlow or the shape function refuses it, with what they say.
    #[track_caller]
    pub fn made(self) -> Node<'g> {
        self.finish().unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Makes the node, which is good, and gives its first output.
    ///
    /// # Panics
    /// As [`NodeBuilder::made`].
    #[track_caller]
    pub fn first(self) -> Output<'g> {
        self.made().output(0)
    }

    /// Makes the node.
    ///
    /// # Errors
    /// TensorFlow's and the shape function's.
    pub fn finish(self) -> Result<Node<'g>> {
        let status = Status::new();
        // SAFETY: finishing takes the description over, also if it fails.
        let raw = unsafe { tf::TF_FinishOperation(self.raw, status.raw()) };
        status.check().map(|()| Node {
            raw,
            graph: PhantomData,
        })
    }
}

/// A shape as C takes it; the pointer lives as long as the shape.
fn lend(shape: &Shape) -> (*const i64, c_int) {
    match shape {
        None => (std::ptr::null(), -1),
        Some(dims) => (dims.as_ptr(), dims.len() as c_int),
    }
}

fn text(text: &str) -> CString {
    CString::new(text).expect("a text without a zero byte")
}
