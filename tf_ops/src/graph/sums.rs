//! The rule for sums over bags: lookups whose rows are only added up or averaged over the last
//! dimension of their ids, and the gradients that repeat one of a bag for each of its ids.

use super::describe::{described, several};
use super::graph_def::{Graph, InputSource, Node};
use super::readers::{row_reader, RowReader};
use super::repeated::{Repeated, Search};
use super::sizes::SizeReader;
use super::tensors::{dims, integers_of, Dims};
use super::weights::{depends, is_product, multiplied, Multiplied, PlannedWeights, Weights};
use mx_rec_kernels::Result;
use serde::Serialize;

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
    /// Name of the table.
    pub table: String,
    /// Whether the rows are added up where they are read.
    pub fuses: bool,
    /// What its rows are multiplied with before, if it is anything.
    pub weights: Option<PlannedWeights>,
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
        readers.extend(row_reader(graph, at)?);
    }
    if readers.is_empty() {
        return Ok(Vec::new());
    }
    let rule = Rule { graph };
    let mut found = Vec::new();
    for reader in &readers {
        found.extend(rule.judge(reader)?);
    }
    Ok(found)
}

struct Rule<'g, 'a> {
    graph: &'g Graph<'a>,
}

/// Who reads the rows of a lookup.
#[derive(Default)]
struct Uses<'a> {
    /// The rows, what passes them on, and their products with weights: node and output.
    tensors: Vec<(usize, u64)>,
    /// What the rows are multiplied with.
    weights: Option<Weights<'a>>,
    /// The nodes whose results are such products, passed on or not.
    weighted: Vec<usize>,
    /// Whether rows are summed over bags without weights.
    is_plain: bool,
    /// A node that multiplies rows for nobody, as the gradient of weights that is not asked for.
    unread: Option<usize>,
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
        let shape = dims(graph, &graph.output_of(reader.node)?)?;
        let uses = self.uses(reader, shape.as_ref())?;
        if uses.sums.is_empty() {
            return Ok(None);
        }
        let mut planned = PlannedSums {
            lookup: node.name.to_owned(),
            table: reader.table(),
            fuses: false,
            weights: uses.weights.map(|weights| weights.planned()),
            sums: uses.sums,
            shapes: uses.shapes,
            gradients: Vec::new(),
            left_out: Vec::new(),
            reason: String::new(),
        };
        let twice = graph.find(node.name) != InputSource::Node(reader.node);
        let fault = match twice {
            true => Some(several(node)),
            false => reader.misplaced(graph)?,
        };
        let depends = match &uses.weights {
            Some(weights) => depends(graph, weights)?,
            None => None,
        };
        let mixed = (uses.weights.is_some() && uses.is_plain)
            .then(|| "its rows are summed with weights and without".to_owned());
        let unread = match (&uses.weights, uses.unread) {
            // Without weights it may be what a script fetches.
            (None, Some(at)) => Some(self.read_too(reader, graph.node(at)?)?),
            _ => None,
        };
        if let Some(why) = fault.or(uses.fault).or(unread).or(mixed).or(depends) {
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
        let rows = (&uses.tensors[..], shape.as_ref());
        let kept = self.add_gradients(reader, rows, uses.weights, &mut planned)?;
        planned.reason = reason(&planned, kept);
        Ok(Some(planned))
    }

    fn uses(&self, reader: &RowReader<'a>, shape: Option<&Dims>) -> Result<Uses<'a>> {
        let graph = self.graph;
        let mut uses = Uses {
            tensors: vec![(reader.node, 0)],
            ..Uses::default()
        };
        let mut next = 0;
        while let Some(&(at, output)) = uses.tensors.get(next) {
            next += 1;
            if let Some(waiting) = graph.waiting(at)? {
                let (one, other) = (graph.node(waiting)?, graph.node(at)?);
                let why = format!("{} waits for {}", described(one), described(other));
                uses.fault.get_or_insert(why);
            }
            for reading in graph.readers(at, output)? {
                let node = graph.node(reading.node)?;
                match (node.op, reading.place) {
                    ("Identity" | "StopGradient", 0) => {
                        if uses.weighted.contains(&at) {
                            uses.weighted.push(reading.node);
                        }
                        uses.tensors.push((reading.node, 0));
                    }
                    ("Shape", 0) => uses.shapes.push(node.name.to_owned()),
                    ("Mul" | "BatchMatMul" | "BatchMatMulV2", place)
                        if !uses.weighted.contains(&at) =>
                    {
                        self.add_product(reader, shape, (reading.node, place), &mut uses)?;
                    }
                    ("Sum" | "Mean", 0) => {
                        let axes = self.over_bags(node, shape)?;
                        if !matches!(axes, Axes::Other(_)) {
                            uses.sums.push(planned_sum(node)?);
                            uses.is_plain |= !uses.weighted.contains(&at);
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

    /// Adds a node that multiplies the rows.
    fn add_product(
        &self,
        reader: &RowReader<'a>,
        shape: Option<&Dims>,
        (at, place): (usize, usize),
        uses: &mut Uses<'a>,
    ) -> Result<()> {
        let graph = self.graph;
        let node = graph.node(at)?;
        let mut is_summed = false;
        for reading in graph.readers(at, 0)? {
            let sum = graph.node(reading.node)?;
            is_summed |= matches!(sum.op, "Sum" | "Mean")
                && reading.place == 0
                && !matches!(self.over_bags(sum, shape)?, Axes::Other(_));
        }
        let known = (at, place);
        let found = multiplied(graph, reader, shape, known, is_summed)?;
        let why = match &found {
            Multiplied::Weighted(weights) => match &uses.weights {
                Some(others) if !others.are(weights) => "multiplies its rows with other weights",
                _ => {
                    uses.weights = Some(*weights);
                    ""
                }
            },
            Multiplied::Doubtful => {
                "multiplies its rows with a tensor that is not known to be a weight for each id"
            }
            Multiplied::Unread => {
                uses.unread = Some(at);
                ""
            }
            Multiplied::Otherwise if uses.weights.is_some() => {
                "reads the rows of each id for a gradient of the weights"
            }
            Multiplied::Otherwise => "reads its rows, too",
        };
        if !why.is_empty() {
            uses.fault
                .get_or_insert(format!("{} {why}", described(node)));
        }
        match found {
            Multiplied::Weighted(_) | Multiplied::Doubtful if is_product(node) => {
                uses.sums.push(PlannedSum {
                    node: node.name.to_owned(),
                    combiner: Combiner::Sum,
                    keep_dims: true,
                });
            }
            Multiplied::Weighted(_) | Multiplied::Doubtful => {
                uses.weighted.push(at);
                uses.tensors.push((at, 0));
            }
            Multiplied::Unread | Multiplied::Otherwise => {}
        }
        Ok(())
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
        let readers = |of| graph.readers(of, 0);
        for chosen in readers(reshape)? {
            if !matches!(graph.node(chosen.node)?.op, "Select" | "SelectV2") {
                continue;
            }
            for rows in readers(chosen.node)? {
                if graph.node(rows.node)?.op != "Reshape" {
                    continue;
                }
                let shape = dims(graph, &graph.output_of(rows.node)?)?;
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
        let given = integers_of(self.graph, axes)?;
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
        (tensors, shape): (&[(usize, u64)], Option<&Dims>),
        weights: Option<Weights<'a>>,
        planned: &mut PlannedSums,
    ) -> Result<usize> {
        let graph = self.graph;
        let unknown = Dims::new();
        let mut kept = 0;
        for (tensor, readers) in reader.gradients(graph)? {
            let sizes = SizeReader::new(graph, tensors, shape.unwrap_or(&unknown));
            let search = Search::new(graph, sizes);
            match search.of(&tensor, weights.as_ref())? {
                Some(found) => {
                    planned.left_out.extend(found.left_out);
                    planned.gradients.push(PlannedGradient {
                        tensor: tensor.tensor(),
                        readers,
                        repeated: found.repeated,
                        waits: found.waits,
                    });
                }
                None => kept += 1,
            }
        }
        Ok(kept)
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

fn reason(planned: &PlannedSums, kept: usize) -> String {
    let mut text = match planned.weights {
        None => "its rows are added up where they are read".to_owned(),
        Some(_) => "its rows are multiplied and added up where they are read".to_owned(),
    };
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
