//! The rule for sums over bags: lookups whose rows are only added up or averaged over the last
//! dimension of their ids, and the gradients that repeat one of a bag for each of its ids.

use super::consumers::{same, Consumers};
use super::describe::{described, quoted};
use super::graph_def::{Graph, InputSource, Node, NodeInput};
use super::readers::{row_readers, source_of, RowReader};
use super::sizes::{Size, SizeReader};
use super::tensors::{constant, dims, Dims};
use mx_rec_kernels::Result;
use serde::Serialize;

/// A gradient is followed over at most so many nodes.
const MOST_NODES: usize = 64;

/// How the rows of a bag are combined.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "lowercase")]
pub enum Combiner {
    /// They are added up.
    Sum,
    /// Their sum is divided by the length of the bag, padding included.
    Mean,
}

/// A sum over the bags of a lookup.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedSum {
    /// Name of the node that makes it.
    pub node: String,
    /// What it makes.
    pub combiner: Combiner,
    /// Whether the dimension that is summed stays, with size 1.
    pub keep_dims: bool,
}

/// How a gradient of each id is computed from one of each bag.
#[derive(Clone, Debug, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Repeated {
    /// This tensor, whose last dimension but one has size 1, is repeated along it.
    Tensor(String),
    /// A repeated tensor is multiplied with a scalar or divided by it.
    Scaled {
        /// The op: RealDiv or Mul.
        op: String,
        /// The scalar.
        by: String,
        /// What is repeated.
        of: Box<Repeated>,
    },
    /// Repeated tensors are added up in this order.
    Added(Vec<Repeated>),
}

/// A gradient of each id that can be read as one of each bag.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedGradient {
    /// The tensor.
    pub tensor: String,
    /// Names of the nodes that take it for the rows of this lookup.
    pub readers: Vec<String>,
    /// How it is computed from gradients of bags.
    pub repeated: Repeated,
    /// Names of the nodes that what computes it waits for.
    pub waits: Vec<String>,
}

/// A lookup whose rows are summed over bags.
#[derive(Clone, Debug, Serialize)]
pub struct PlannedSums {
    /// Name of the node that reads the rows.
    pub lookup: String,
    /// Which of its outputs they are.
    pub output: u64,
    /// Name of the table.
    pub table: String,
    /// Whether the rows are added up where they are read.
    pub fuses: bool,
    /// The sums.
    pub sums: Vec<PlannedSum>,
    /// Names of the nodes that read the shape of the rows.
    pub shapes: Vec<String>,
    /// Gradients that go to the rows without being repeated.
    pub gradients: Vec<PlannedGradient>,
    /// Tensors that the fused graph does not read any more.
    pub left_out: Vec<String>,
    /// Why it is fused or not, a sentence.
    pub reason: String,
}

/// Finds the lookups whose rows are summed over bags, in the order of the graph.
///
/// # Errors
/// `InvalidArgument` if an attribute cannot be read.
pub(super) fn find(graph: &Graph<'_>) -> Result<Vec<PlannedSums>> {
    let mut readers = Vec::new();
    for at in 0..graph.nodes.len() {
        readers.extend(row_readers(graph, at)?);
    }
    if readers.is_empty() {
        return Ok(Vec::new());
    }
    let consumers = Consumers::new(graph);
    let rule = Rule { graph, consumers };
    let mut found = Vec::new();
    for reader in &readers {
        found.extend(rule.judge(reader)?);
    }
    Ok(found)
}

struct Rule<'g, 'a> {
    graph: &'g Graph<'a>,
    consumers: Consumers,
}

/// Who reads the rows of a lookup.
#[derive(Default)]
struct Uses {
    /// The rows, and what passes them on: node and output.
    tensors: Vec<(usize, u64)>,
    sums: Vec<PlannedSum>,
    axes: Vec<String>,
    shapes: Vec<String>,
    /// Why the rows are needed one by one.
    fault: Option<String>,
}

/// What a node sums over.
enum Axes {
    /// The bags: the last dimension of the ids. This tensor says so.
    Bags(String),
    /// Perhaps the bags, but they cannot be fused, for this reason.
    Doubtful(&'static str),
    /// Something else.
    Other(&'static str),
}

impl<'g, 'a> Rule<'g, 'a> {
    /// The entry of a lookup in the plan; `None` if nothing sums its rows over bags.
    fn judge(&self, reader: &RowReader<'a>) -> Result<Option<PlannedSums>> {
        let graph = self.graph;
        let node = graph.node(reader.node)?;
        let rows = NodeInput {
            node: node.name,
            output: Some(reader.output),
            source: InputSource::Node(reader.node),
        };
        let shape = dims(graph, &rows)?;
        let uses = self.uses(reader, shape.as_ref())?;
        if uses.sums.is_empty() {
            return Ok(None);
        }
        let mut planned = PlannedSums {
            lookup: node.name.to_owned(),
            output: reader.output,
            table: reader.table(),
            fuses: false,
            sums: uses.sums,
            shapes: uses.shapes,
            gradients: Vec::new(),
            left_out: Vec::new(),
            reason: String::new(),
        };
        let twice = graph.find(node.name) != InputSource::Node(reader.node);
        let fault = match twice {
            true => Some(format!(
                "there are several nodes of the name {}",
                quoted(node.name)
            )),
            false => reader.misplaced(graph)?,
        };
        if let Some(why) = fault.or(uses.fault) {
            planned.reason = why;
            return Ok(Some(planned));
        }
        planned.fuses = true;
        planned.left_out = uses.axes;
        for &(at, output) in &uses.tensors {
            planned
                .left_out
                .push(format!("{}:{output}", graph.node(at)?.name));
        }
        let kept = self.add_gradients(reader, &uses.tensors, shape.as_ref(), &mut planned)?;
        planned.reason = reason(&planned, kept);
        Ok(Some(planned))
    }

    fn uses(&self, reader: &RowReader<'a>, shape: Option<&Dims>) -> Result<Uses> {
        let graph = self.graph;
        let mut uses = Uses {
            tensors: vec![(reader.node, reader.output)],
            ..Uses::default()
        };
        let mut next = 0;
        while let Some(&(at, output)) = uses.tensors.get(next) {
            next += 1;
            if let Some(waiting) = self.consumers.waiting(graph, at)? {
                let (one, other) = (graph.node(waiting)?, graph.node(at)?);
                let why = format!("{} waits for {}", described(one), described(other));
                uses.fault.get_or_insert(why);
            }
            for reading in self.consumers.of(graph, at, output)? {
                let node = graph.node(reading.node)?;
                match (node.op, reading.place) {
                    ("Identity" | "StopGradient", 0) => uses.tensors.push((reading.node, 0)),
                    ("Shape", 0) => uses.shapes.push(node.name.to_owned()),
                    ("Sum" | "Mean", 0) => {
                        let axes = self.over_bags(node, shape)?;
                        if !matches!(axes, Axes::Other(_)) {
                            uses.sums.push(planned_sum(node)?);
                        }
                        match axes {
                            Axes::Bags(axes) => uses.axes.push(axes),
                            Axes::Doubtful(why) | Axes::Other(why) => {
                                uses.fault
                                    .get_or_insert(format!("{} {why}", described(node)));
                            }
                        }
                    }
                    ("Reshape", 0) if !self.sums_of_defaults(reading.node, &mut uses.sums)? => {
                        uses.fault.get_or_insert(self.read_too(reader, node)?);
                    }
                    ("Reshape", 0) => {
                        let why = "default rows may take the place of its rows";
                        uses.fault.get_or_insert(why.to_owned());
                    }
                    _ => {
                        uses.fault.get_or_insert(self.read_too(reader, node)?);
                    }
                }
            }
        }
        Ok(uses)
    }

    fn read_too(&self, reader: &RowReader<'a>, node: &Node<'a>) -> Result<String> {
        let this = described(self.graph.node(reader.node)?);
        Ok(format!("{} reads the rows of {this}, too", described(node)))
    }

    /// Adds the sums over bags of rows, or of the default rows of keys that are not admitted, whose
    /// choice begins with this Reshape; says whether there are some.
    fn sums_of_defaults(&self, reshape: usize, sums: &mut Vec<PlannedSum>) -> Result<bool> {
        let graph = self.graph;
        let before = sums.len();
        let readers = |of| self.consumers.of(graph, of, 0);
        for chosen in readers(reshape)? {
            if !matches!(graph.node(chosen.node)?.op, "Select" | "SelectV2") {
                continue;
            }
            for rows in readers(chosen.node)? {
                if graph.node(rows.node)?.op != "Reshape" {
                    continue;
                }
                let tensor = NodeInput {
                    node: graph.node(rows.node)?.name,
                    output: Some(0),
                    source: InputSource::Node(rows.node),
                };
                let shape = dims(graph, &tensor)?;
                for sum in readers(rows.node)? {
                    let node = graph.node(sum.node)?;
                    let is_sum = matches!(node.op, "Sum" | "Mean") && sum.place == 0;
                    if is_sum && matches!(self.over_bags(node, shape.as_ref())?, Axes::Bags(_)) {
                        sums.push(planned_sum(node)?);
                    }
                }
            }
        }
        Ok(sums.len() > before)
    }

    /// Which axes a node sums over.
    fn over_bags(&self, node: &Node<'a>, shape: Option<&Dims>) -> Result<Axes> {
        let Some(axes) = self.graph.data_input(node, 1) else {
            return Ok(Axes::Other("has no axes"));
        };
        let source = source_of(self.graph, axes);
        let found = source.map(constant).transpose()?.flatten();
        let given = found.and_then(|found| found.integers);
        Ok(match (given.as_deref(), shape.map(Vec::len)) {
            (None, _) => Axes::Other("does not sum over constant axes"),
            (Some([0 | -2]), Some(2)) => {
                Axes::Doubtful("sums the rows of all ids, which are one bag")
            }
            (Some([-2]), _) => Axes::Bags(axes.tensor()),
            (Some(&[axis]), Some(rank)) if axis >= 0 && axis + 2 == rank as i64 => {
                Axes::Bags(axes.tensor())
            }
            (Some(&[axis]), None) if axis >= 0 => {
                Axes::Doubtful("sums rows of which the graph does not tell the rank")
            }
            _ => Axes::Other("does not sum over the last dimension of the ids alone"),
        })
    }

    /// Adds the gradients that can be read as those of bags; returns how many cannot.
    fn add_gradients(
        &self,
        reader: &RowReader<'a>,
        tensors: &[(usize, u64)],
        shape: Option<&Dims>,
        planned: &mut PlannedSums,
    ) -> Result<usize> {
        let graph = self.graph;
        let unknown = Dims::new();
        let mut found: Vec<(NodeInput<'a>, Vec<String>)> = Vec::new();
        for taken in reader.gradients(graph, &self.consumers)? {
            let name = graph.node(taken.node)?.name.to_owned();
            match found
                .iter_mut()
                .find(|(tensor, _)| same(tensor, &taken.gradient))
            {
                Some((_, readers)) => readers.push(name),
                None => found.push((taken.gradient, vec![name])),
            }
        }
        let mut kept = 0;
        for (tensor, readers) in found {
            let mut search = Search {
                graph,
                sizes: SizeReader::new(graph, tensors, shape.unwrap_or(&unknown)),
                left_out: Vec::new(),
                waits: Vec::new(),
                budget: MOST_NODES,
            };
            match search.repeated(&tensor)? {
                Some(repeated) => {
                    let mut waits = search.waits;
                    waits.extend(search.sizes.into_waits());
                    waits.sort();
                    waits.dedup();
                    planned.left_out.extend(search.left_out);
                    planned.gradients.push(PlannedGradient {
                        tensor: tensor.tensor(),
                        readers,
                        repeated,
                        waits,
                    });
                }
                None => kept += 1,
            }
        }
        Ok(kept)
    }
}

/// The search for what a gradient repeats.
struct Search<'g, 'a> {
    graph: &'g Graph<'a>,
    sizes: SizeReader<'g, 'a>,
    left_out: Vec<String>,
    waits: Vec<String>,
    budget: usize,
}

impl<'a> Search<'_, 'a> {
    /// How a tensor is computed by repeating; `None` if it is anything else.
    fn repeated(&mut self, tensor: &NodeInput<'a>) -> Result<Option<Repeated>> {
        let graph = self.graph;
        let (Some(node), Some(budget)) = (source_of(graph, tensor), self.budget.checked_sub(1))
        else {
            return Ok(None);
        };
        self.budget = budget;
        if tensor.output != Some(0) {
            return Ok(None);
        }
        let (inputs, waits) = data_and_waits(graph, node);
        self.waits.extend(waits);
        self.left_out.push(tensor.tensor());
        match (node.op, inputs) {
            ("Identity", [of]) => self.repeated(of),
            ("Tile", [of, times]) => self.tiled(of, times),
            ("BroadcastTo", [of, shape]) => self.broadcast(of, shape),
            ("RealDiv", [of, by]) => self.scaled(node, of, by),
            ("Mul", [one, other]) => match self.scaled(node, one, other)? {
                None => self.scaled(node, other, one),
                found => Ok(found),
            },
            ("AddN", of) => {
                let mut added = Vec::with_capacity(of.len());
                for one in of {
                    match self.repeated(one)? {
                        Some(repeated) => added.push(repeated),
                        None => return Ok(None),
                    }
                }
                Ok(Some(Repeated::Added(added)))
            }
            _ => Ok(None),
        }
    }

    fn scaled(
        &mut self,
        node: &Node<'a>,
        of: &NodeInput<'a>,
        by: &NodeInput<'a>,
    ) -> Result<Option<Repeated>> {
        if !self.is_scalar(by)? {
            return Ok(None);
        }
        let of = self.repeated(of)?;
        Ok(of.map(|of| Repeated::Scaled {
            op: node.op.to_owned(),
            by: by.tensor(),
            of: Box::new(of),
        }))
    }

    /// `of`, repeated as often as `times` says along each dimension: once, but for that of bags.
    fn tiled(&mut self, of: &NodeInput<'a>, times: &NodeInput<'a>) -> Result<Option<Repeated>> {
        let (Some(sizes), Some(times_of)) = (self.kept(of)?, self.sizes.read(times)?) else {
            return Ok(None);
        };
        let times_of = times_of.elements;
        let Some(bags) = sizes.len().checked_sub(2) else {
            return Ok(None);
        };
        let is_once = sizes.len() == times_of.len()
            && sizes
                .iter()
                .zip(&times_of)
                .enumerate()
                .all(|(axis, (size, times))| {
                    match (axis == bags, size, times) {
                        (true, Size::Known(1), _) | (false, _, Size::Known(1)) => true,
                        // Where there is none of it, none is right.
                        (false, Size::Of(one), Size::OneOrNone(other)) => one == other,
                        _ => false,
                    }
                });
        if !is_once {
            return Ok(None);
        }
        self.left_out.push(times.tensor());
        Ok(Some(Repeated::Tensor(of.tensor())))
    }

    /// `of`, repeated until it has this shape.
    fn broadcast(&mut self, of: &NodeInput<'a>, shape: &NodeInput<'a>) -> Result<Option<Repeated>> {
        let (Some(sizes), Some(target)) = (self.kept(of)?, self.sizes.read(shape)?) else {
            return Ok(None);
        };
        let target = target.elements;
        let Some(bags) = sizes.len().checked_sub(2) else {
            return Ok(None);
        };
        let is_once = sizes.len() == target.len()
            && sizes
                .iter()
                .zip(&target)
                .enumerate()
                .all(|(axis, (size, target))| match axis == bags {
                    true => *size == Size::Known(1),
                    false => size == target,
                });
        if !is_once {
            return Ok(None);
        }
        self.left_out.push(shape.tensor());
        Ok(Some(Repeated::Tensor(of.tensor())))
    }

    /// The sizes of a tensor, if that of its last dimension but one is 1.
    fn kept(&mut self, of: &NodeInput<'a>) -> Result<Option<Vec<Size>>> {
        let graph = self.graph;
        if let Some(node) = source_of(graph, of) {
            if let ("Reshape", Some(shape)) = (node.op, graph.data_input(node, 1)) {
                if let Some(sizes) = self.sizes.read(shape)? {
                    self.waits.extend(data_and_waits(graph, node).1);
                    return Ok(Some(sizes.elements));
                }
            }
        }
        let known = dims(graph, of)?;
        Ok(known.and_then(|dims| dims.into_iter().map(|dim| dim.map(Size::Known)).collect()))
    }

    /// Whether a tensor is a scalar.
    fn is_scalar(&mut self, tensor: &NodeInput<'a>) -> Result<bool> {
        if dims(self.graph, tensor)?.is_some_and(|dims| dims.is_empty()) {
            return Ok(true);
        }
        let (Some(node), Some(budget)) =
            (source_of(self.graph, tensor), self.budget.checked_sub(1))
        else {
            return Ok(false);
        };
        self.budget = budget;
        let graph = self.graph;
        match (
            node.op,
            graph.data_input(node, 0),
            graph.data_input(node, 1),
        ) {
            ("Cast" | "Identity", Some(of), _) => self.is_scalar(of),
            ("FloorDiv" | "Maximum" | "RealDiv" | "Mul", Some(one), Some(other)) => {
                Ok(self.is_scalar(one)? && self.is_scalar(other)?)
            }
            // Of a shape, which is a vector.
            ("Prod", Some(of), Some(axes)) if !node.flag("keep_dims")? => {
                let is_shape = source_of(graph, of).is_some_and(|of| of.op == "Shape");
                let axes = source_of(graph, axes).map(constant).transpose()?.flatten();
                Ok(is_shape && axes.and_then(|axes| axes.integers) == Some(vec![0]))
            }
            _ => Ok(false),
        }
    }
}

fn planned_sum(node: &Node<'_>) -> Result<PlannedSum> {
    Ok(PlannedSum {
        node: node.name.to_owned(),
        combiner: match node.op {
            "Sum" => Combiner::Sum,
            _ => Combiner::Mean,
        },
        keep_dims: node.flag("keep_dims")?,
    })
}

/// The data inputs of a node, and the names of the nodes that it waits for.
fn data_and_waits<'g, 'a>(
    graph: &'g Graph<'a>,
    node: &Node<'a>,
) -> (&'g [NodeInput<'a>], Vec<String>) {
    let inputs = graph.inputs(node);
    // Control inputs come last.
    let data = inputs
        .iter()
        .take_while(|input| !input.is_control())
        .count();
    let (data, waits) = inputs.split_at(data);
    (
        data,
        waits.iter().map(|input| input.node.to_owned()).collect(),
    )
}

fn reason(planned: &PlannedSums, kept: usize) -> String {
    let mut text = "its rows are added up where they are read".to_owned();
    match planned.gradients.len() {
        0 => {}
        1 => text.push_str(", and its gradient goes to the rows without being repeated"),
        n => text.push_str(&format!(
            ", and {n} gradients go to the rows without being repeated"
        )),
    }
    match kept {
        0 => {}
        1 => text
            .push_str("; one gradient stays one of each id, since it is more than a repeated one"),
        n => text.push_str(&format!(
            "; {n} gradients stay gradients of each id, since they are more than repeated ones"
        )),
    }
    text
}
