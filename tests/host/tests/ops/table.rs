//! A table in a graph, the nodes that tests make of it, and what a session says of it.

use mx_rec_host_tests::{Code, Element, Graph, Node, NodeBuilder, Output, Result, Session, Tensor};
use serde_json::{json, Value};

/// What wrong arguments end with.
pub(crate) const INVALID: Code = Code::TF_INVALID_ARGUMENT;

/// The columns of the tables in these tests: a full SIMD register and a rest.
pub(crate) const DIM: usize = 11;

/// The nodes of a table, and those that look at it.
#[derive(Clone, Copy)]
pub(crate) struct Table<'g> {
    graph: &'g Graph,
    /// What lookups take.
    pub(crate) variable: Output<'g>,
    /// Its number.
    pub(crate) handle: Output<'g>,
    stats: Node<'g>,
    dim: usize,
}

/// The settings of a table whose rows start at 0.5; `more` replaces some.
pub(crate) fn settings(name: &str, more: Value) -> String {
    let mut settings = json!({
        "name": name, "dim": DIM, "capacity": 1000, "seed": 7, "init_param": 1.0,
        "padding_keys": [], "initializer": {"kind": "constant", "value": 0.5},
    });
    if let (Value::Object(settings), Value::Object(more)) = (&mut settings, more) {
        settings.extend(more);
    }
    settings.to_string()
}

/// The node of a table with these settings.
pub(crate) fn table_node<'g>(graph: &'g Graph, settings: &str, dim: usize) -> Result<Node<'g>> {
    let config = graph.constant(&Tensor::vector(settings.as_bytes()));
    let like = graph.constant(&Tensor::new::<f32>(&[0, dim as i64], &[]));
    graph.node("MxRecTable").input(config).input(like).finish()
}

impl<'g> Table<'g> {
    /// A table by [`settings`].
    pub(crate) fn new(graph: &'g Graph, name: &str, more: Value) -> Table<'g> {
        let dim = more["dim"].as_u64().map_or(DIM, |dim| dim as usize);
        let node = table_node(graph, &settings(name, more), dim).expect("a table");
        let handle = node.output(1);
        let stats = graph.node("MxRecTableStats").input(handle).finish();
        Table {
            graph,
            variable: node.output(0),
            handle,
            stats: stats.expect("MxRecTableStats"),
            dim,
        }
    }

    /// Begins a node whose first input is the handle.
    pub(crate) fn node(&self, op: &str) -> NodeBuilder<'g> {
        self.graph.node(op).input(self.handle)
    }

    /// How many rows an op removes; or, if fields are named, of how many it starts these afresh.
    pub(crate) fn clear(
        &self,
        (names, initial): (&[Output<'g>], Output<'g>),
        keys: Output<'g>,
    ) -> Output<'g> {
        let node = self.node("MxRecClear").inputs(names);
        node.input(initial).input(keys).first()
    }

    /// How many rows an op removes, which are all.
    pub(crate) fn clear_all(&self) -> Output<'g> {
        let none = self.graph.constant(&Tensor::vector::<f32>(&[]));
        let all = self.graph.constant(&Tensor::vector::<i64>(&[]));
        self.clear((&[], none), all)
    }

    /// Offsets and inverse of a training lookup.
    pub(crate) fn id_offset(&self, ids: Output<'g>) -> (Output<'g>, Output<'g>) {
        let node = resolve(self.graph, &[self.handle], &[ids], [&[], &[]]);
        let node = node.made();
        (node.output(0), node.output(1))
    }

    /// The embeddings of what [`Table::id_offset`] gave.
    pub(crate) fn embed(&self, (offsets, inverse): (Output<'g>, Output<'g>)) -> Output<'g> {
        self.read(offsets, &[inverse], [&[], &[], &[]])
    }

    /// The rows of distinct keys, or those of ids, or of bags: ends, weights and divisors.
    pub(crate) fn read(
        &self,
        offsets: Output<'g>,
        inverse: &[Output<'g>],
        bags: [&[Output<'g>]; 3],
    ) -> Output<'g> {
        let node = read(self.graph, &[*self], &[offsets], inverse, bags);
        node.int("M", 1).first()
    }

    /// The rows of keys, or of bags of them: ends, weights and divisors.
    pub(crate) fn find(
        &self,
        ids: Output<'g>,
        absent: &[Output<'g>],
        bags: [&[Output<'g>]; 3],
    ) -> Output<'g> {
        find(self.graph, &[*self], &[ids], absent, bags).first()
    }

    /// A save of the whole table.
    pub(crate) fn save(&self, path: &str) -> Node<'g> {
        self.save_since(path, self.scalar(-1_i64))
    }

    /// A save of what changed after an epoch.
    pub(crate) fn save_since(&self, path: &str, since: Output<'g>) -> Node<'g> {
        let node = self.node("MxRecSave").input(self.text(path)).input(since);
        node.input(self.scalar(0_i64)).made()
    }

    /// A load of everything, or of slots.
    pub(crate) fn load(&self, paths: &str, slots: &[Output<'g>]) -> Node<'g> {
        let node = self.node("MxRecLoad").input(self.text(paths)).inputs(slots);
        node.made()
    }

    /// A constant of the bytes of a text.
    fn text(&self, text: &str) -> Output<'g> {
        self.graph.constant(&Tensor::vector(text.as_bytes()))
    }

    /// Gradient descent on offsets that exist already, at learning rate 1 without decay.
    pub(crate) fn descend(&self, offsets: Output<'g>, grad: Output<'g>) -> Output<'g> {
        let numbers = [self.scalar(1.0_f32), self.scalar(0.0_f32)];
        self.update_rows(offsets, grad, SGD, &numbers)
    }

    /// A step of the optimizer of a number on offsets that exist already.
    pub(crate) fn update_rows(
        &self,
        offsets: Output<'g>,
        grad: Output<'g>,
        optimizer: i64,
        numbers: &[Output<'g>],
    ) -> Output<'g> {
        let update = Update {
            handles: &[self.handle],
            offsets: &[offsets],
            grad: &[grad],
            ..Update::default()
        };
        update.step(self.graph, optimizer, numbers)
    }

    /// A step of the optimizer of a number on the rows of ids; unknown ones get rows first.
    pub(crate) fn update_ids(
        &self,
        ids: Output<'g>,
        grad: Output<'g>,
        optimizer: i64,
        numbers: &[Output<'g>],
    ) -> Output<'g> {
        let (offsets, inverse) = self.id_offset(ids);
        let update = Update {
            handles: &[self.handle],
            offsets: &[offsets],
            inverse: &[inverse],
            grad: &[grad],
            ..Update::default()
        };
        update.step(self.graph, optimizer, numbers)
    }

    /// A constant of rank 0.
    pub(crate) fn scalar<T: Element>(&self, value: T) -> Output<'g> {
        self.graph.constant(&Tensor::scalar(value))
    }

    /// How many rows it has.
    pub(crate) fn size(&self, session: &Session<'g>) -> i64 {
        self.stats(session)[0]
    }

    /// Its statistics, in the order of docs/ops.md.
    pub(crate) fn stats(&self, session: &Session<'g>) -> Vec<i64> {
        let stats = session.get(&[], &[self.stats.output(0)]);
        stats[0].values().to_vec()
    }

    /// Every key with its embedding, by key.
    pub(crate) fn rows(&self, session: &Session<'g>) -> Vec<(i64, Vec<f32>)> {
        self.slot(session, "")
    }

    /// Every key with the values of a slot, by key.
    pub(crate) fn slot(&self, session: &Session<'g>, name: &str) -> Vec<(i64, Vec<f32>)> {
        let export = self.node("MxRecExport").inputs(&[self.text(name)]).finish();
        by_key(session, export.expect("MxRecExport"), self.dim)
    }
}

/// The gradients of distinct keys, of a gradient for each id of what [`Table::id_offset`] gave.
pub(crate) fn reduce<'g>(
    graph: &'g Graph,
    grad: Output<'g>,
    (offsets, inverse): (Output<'g>, Output<'g>),
) -> Output<'g> {
    let node = graph.node("MxRecReduce").input(grad).input(inverse);
    node.input(offsets).first()
}

/// Begins the node that gives keys their rows, by what `prepared` says: offsets and inverses.
pub(crate) fn resolve<'g>(
    graph: &'g Graph,
    handles: &[Output<'g>],
    ids: &[Output<'g>],
    [offsets, inverses]: [&[Output<'g>]; 2],
) -> NodeBuilder<'g> {
    let node = graph.node("MxRecIdOffset").inputs(handles).inputs(ids);
    let node = node.inputs(offsets).inputs(inverses);
    node.int("create", 1)
}

/// The node that finds the rows of keys of tables.
pub(crate) fn find<'g>(
    graph: &'g Graph,
    tables: &[Table<'g>],
    ids: &[Output<'g>],
    absent: &[Output<'g>],
    bags: [&[Output<'g>]; 3],
) -> NodeBuilder<'g> {
    rows(graph.node("MxRecFind"), tables, [ids, absent], bags)
}

/// Begins the node that reads the rows of offsets of tables; M is still to be set.
pub(crate) fn read<'g>(
    graph: &'g Graph,
    tables: &[Table<'g>],
    offsets: &[Output<'g>],
    inverse: &[Output<'g>],
    bags: [&[Output<'g>]; 3],
) -> NodeBuilder<'g> {
    rows(graph.node("MxRecRead"), tables, [offsets, inverse], bags)
}

/// The inputs that both have: tables, whose rows and two more lists, and bags.
fn rows<'g>(
    node: NodeBuilder<'g>,
    tables: &[Table<'g>],
    [keys, more]: [&[Output<'g>]; 2],
    [ends, weights, divisors]: [&[Output<'g>]; 3],
) -> NodeBuilder<'g> {
    let handles: Vec<_> = tables.iter().map(|table| table.handle).collect();
    let variables: Vec<_> = tables.iter().map(|table| table.variable).collect();
    let node = node.inputs(&handles).inputs(&variables);
    let node = node.inputs(keys).inputs(more).inputs(ends);
    // Without greatest norms.
    node.inputs(weights).inputs(divisors).inputs(&[])
}

/// The number of gradient descent.
pub(crate) const SGD: i64 = 0;

/// The lists of an update; those without a tensor are absent.
#[derive(Clone, Copy, Default)]
pub(crate) struct Update<'a, 'g> {
    pub(crate) handles: &'a [Output<'g>],
    pub(crate) offsets: &'a [Output<'g>],
    pub(crate) inverse: &'a [Output<'g>],
    pub(crate) grad: &'a [Output<'g>],
    /// Ends, weights and divisors.
    pub(crate) bags: [&'a [Output<'g>]; 3],
    pub(crate) columns: &'a [Output<'g>],
}

impl<'g> Update<'_, 'g> {
    /// Begins the node of a step of the optimizer of a number.
    pub(crate) fn node(
        &self,
        graph: &'g Graph,
        optimizer: i64,
        numbers: &[Output<'g>],
    ) -> NodeBuilder<'g> {
        let [ends, weights, divisors] = self.bags;
        let node = graph.node("MxRecUpdate").inputs(self.handles);
        let node = node.inputs(self.offsets).inputs(self.inverse);
        let node = node.inputs(self.grad).inputs(ends).inputs(weights);
        let node = node.inputs(divisors).inputs(&[]).inputs(&[]);
        let node = node.inputs(self.columns).inputs(numbers);
        node.int("optimizer", optimizer)
    }

    /// A step of the optimizer of a number.
    pub(crate) fn step(
        &self,
        graph: &'g Graph,
        optimizer: i64,
        numbers: &[Output<'g>],
    ) -> Output<'g> {
        self.node(graph, optimizer, numbers).first()
    }
}

/// The rows that a node exports, by key.
fn by_key<'g>(session: &Session<'g>, export: Node<'g>, dim: usize) -> Vec<(i64, Vec<f32>)> {
    let fetched = session.get(&[], &[export.output(0), export.output(1)]);
    let (keys, rows) = (fetched[0].values::<i64>(), fetched[1].values::<f32>());
    assert_eq!(fetched[1].dims(), [keys.len() as i64, dim as i64]);
    let rows = rows.chunks(dim).map(<[f32]>::to_vec);
    let mut found: Vec<_> = keys.iter().copied().zip(rows).collect();
    found.sort_by_key(|(key, _)| *key);
    found
}
