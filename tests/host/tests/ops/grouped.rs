//! Groups: ops on many tables at once, against the same ops on one table after the other.

use crate::oracle::{Optimizer, Oracle, Random, OPTIMIZERS};
use crate::table::{find, read, reduce, resolve, Table, Update, DIM, INVALID, SGD};
use mx_rec_host_tests::{Code, Graph, Node, Output, Session, Tensor};
use serde_json::{json, Value};

/// The columns of the second table: not those of the first.
const NARROW: usize = 5;

/// The columns of each member's table.
const DIMS: [usize; 3] = [DIM, NARROW, DIM];

/// For each member the first of its columns in a concatenation, and at last the width of that.
const FIRSTS: [usize; 4] = [0, DIM, DIM + NARROW, DIM + NARROW + DIM];

/// The ids of a member.
const IDS: [i64; 2] = [4, 3];

/// Two tables, of which the first is member 0 and member 2 of a group.
#[derive(Clone, Copy)]
struct Group<'g> {
    graph: &'g Graph,
    wide: Table<'g>,
    narrow: Table<'g>,
}

/// Offsets and inverse of each member.
struct Lookups<'g> {
    offsets: [Output<'g>; 3],
    inverse: [Output<'g>; 3],
}

impl<'g> Lookups<'g> {
    /// Offsets and inverse of a member.
    fn at(&self, member: usize) -> (Output<'g>, Output<'g>) {
        (self.offsets[member], self.inverse[member])
    }
}

impl<'g> Group<'g> {
    fn new(graph: &'g Graph, name: &str, initializer: &Value) -> Group<'g> {
        let table = |part: &str, dim: usize| {
            let more = json!({"dim": dim, "initializer": initializer});
            Table::new(graph, &format!("{name}_{part}"), more)
        };
        Group {
            graph,
            wide: table("wide", DIM),
            narrow: table("narrow", NARROW),
        }
    }

    fn members(&self) -> [Table<'g>; 3] {
        [self.wide, self.narrow, self.wide]
    }

    /// A training lookup of all members in one op.
    fn id_offset(&self, ids: [Output<'g>; 3]) -> Lookups<'g> {
        let handles = self.members().map(|table| table.handle);
        let node = resolve(self.graph, &handles, &ids, [&[], &[]]).made();
        Lookups {
            offsets: [0, 1, 2].map(|at| node.output(at)),
            inverse: [3, 4, 5].map(|at| node.output(at)),
        }
    }

    /// A training lookup of each member, one after the other.
    fn id_offset_each(&self, ids: [Output<'g>; 3]) -> Lookups<'g> {
        let (first, second) = (self.wide.id_offset(ids[0]), self.narrow.id_offset(ids[1]));
        let third = resolve(self.graph, &[self.wide.handle], &[ids[2]], [&[], &[]]);
        let third = third.after(first.0.node()).made();
        Lookups {
            offsets: [first.0, second.0, third.output(0)],
            inverse: [first.1, second.1, third.output(1)],
        }
    }

    /// The rows of all members in so many tensors.
    fn embed(&self, tensors: i64, lookups: &Lookups<'g>) -> Node<'g> {
        let (offsets, inverse) = (&lookups.offsets, &lookups.inverse);
        let node = read(
            self.graph,
            &self.members(),
            offsets,
            inverse,
            [&[], &[], &[]],
        );
        node.int("M", tensors).made()
    }
}

/// The shape and the bits of a tensor of floats.
fn bits(tensor: &Tensor) -> (Vec<i64>, Vec<u32>) {
    let values = tensor.values::<f32>().iter();
    (tensor.dims(), values.map(|value| value.to_bits()).collect())
}

/// The numbers of rows, without the mark of their table that offsets have in front of it.
fn numbers(offsets: &Tensor) -> Vec<i64> {
    let offsets = offsets.values::<i64>().iter();
    offsets.map(|offset| offset % (1 << 31)).collect()
}

/// Keys of a member: half of them occurred before or come again, some are padding.
fn keys(random: &mut Random) -> Tensor {
    let keys = (0..IDS[0] * IDS[1]).map(|_| random.below(30) as i64 - 1);
    Tensor::new(&IDS, &keys.collect::<Vec<_>>())
}

/// A tensor of random numbers for each id of a member.
fn floats(width: usize, random: &mut Random) -> Tensor {
    let count = (IDS[0] * IDS[1]) as usize * width;
    let values: Vec<f32> = (0..count).map(|_| random.gradient()).collect();
    Tensor::new(&[IDS[0], IDS[1], width as i64], &values)
}

/// The columns of a concatenation that are member number `member`'s.
fn columns(all: &Tensor, member: usize) -> Tensor {
    let rows = all.values::<f32>().chunks(FIRSTS[3]);
    let own: Vec<f32> = rows
        .flat_map(|row| &row[FIRSTS[member]..FIRSTS[member + 1]])
        .copied()
        .collect();
    Tensor::new(&[IDS[0], IDS[1], DIMS[member] as i64], &own)
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn lookups_of_a_group_give_the_bits_that_each_table_alone_gives() {
    let graph = Graph::new();
    let initializer = json!({"kind": "random_uniform", "min": -1.0, "max": 1.0});
    let [group, alone] = ["group", "alone"].map(|name| Group::new(&graph, name, &initializer));
    let ids = [(); 3].map(|()| graph.placeholder::<i64>(&None));
    let absent = [(); 3].map(|()| graph.placeholder::<f32>(&None));
    let grad = graph.placeholder::<f32>(&None);
    let slices = [(); 3].map(|()| graph.placeholder::<f32>(&None));
    let (many, each) = (group.id_offset(ids), alone.id_offset_each(ids));
    let embedded = group.embed(3, &many);
    let side_by_side = group.embed(1, &many).output(0);
    let found = find(&graph, &group.members(), &ids, &absent, [&[], &[], &[]]);
    let found = found.made();
    let mut pairs = Vec::new();
    let mut finds = Vec::new();
    for (member, table) in alone.members().into_iter().enumerate() {
        let one = table.embed(each.at(member));
        pairs.push((embedded.output(member), one));
        let node = graph.node("MxRecReduceColumns").input(grad);
        let node = node.input(many.inverse[member]).input(many.offsets[member]);
        let node = node.int("first", FIRSTS[member] as i64);
        let reduced = node.int("dim", DIMS[member] as i64).first();
        pairs.push((reduced, reduce(&graph, slices[member], each.at(member))));
        let one = table.find(ids[member], &[absent[member]], [&[], &[], &[]]);
        finds.push((found.output(member), one));
    }
    let session = Session::new(&graph).expect("a session");
    let mut random = Random(3);
    for _ in 0..6 {
        let batch = [(); 3].map(|()| keys(&mut random));
        let mut feeds: Vec<_> = ids.into_iter().zip(&batch).collect();
        // What keys without a row get: zeros, one row for all, a row for each id.
        let counts = [0, 1, IDS[0] * IDS[1]];
        let fills = [0, 1, 2].map(|member| {
            let count = counts[member] * DIMS[member] as i64;
            let values: Vec<f32> = (0..count).map(|_| random.gradient()).collect();
            Tensor::new(&[counts[member], DIMS[member] as i64], &values)
        });
        feeds.extend(absent.into_iter().zip(&fills));
        for (many, one) in &finds {
            let got = session.get(&feeds, &[*many, *one]);
            assert_eq!(bits(&got[0]), bits(&got[1]));
        }
        feeds.truncate(3);
        let all = floats(FIRSTS[3], &mut random);
        let own = [0, 1, 2].map(|member| columns(&all, member));
        feeds.push((grad, &all));
        feeds.extend(slices.into_iter().zip(&own));
        let mut fetches = [many.offsets, many.inverse, each.offsets, each.inverse].concat();
        fetches.extend(pairs.iter().flat_map(|(many, one)| [*many, *one]));
        fetches.push(side_by_side);
        let got = session.get(&feeds, &fetches);
        for member in 0..3 {
            assert_eq!(numbers(&got[member]), numbers(&got[6 + member]));
            let (places, expected) = (&got[3 + member], &got[9 + member]);
            assert_eq!(places.values::<i32>(), expected.values::<i32>());
            assert_eq!(places.dims(), IDS);
        }
        for pair in got[12..got.len() - 1].chunks(2) {
            assert_eq!(bits(&pair[0]), bits(&pair[1]));
        }
        let concatenated = got.last().expect("the concatenation");
        assert_eq!(concatenated.dims(), [IDS[0], IDS[1], FIRSTS[3] as i64]);
        for member in 0..3 {
            let own = columns(concatenated, member);
            assert_eq!(bits(&own), bits(&got[12 + 4 * member]), "member {member}");
        }
    }
    assert_eq!(group.wide.rows(&session), alone.wide.rows(&session));
    assert_eq!(group.narrow.rows(&session), alone.narrow.rows(&session));
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_group_takes_ids_of_32_bits() {
    let graph = Graph::new();
    let group = Group::new(&graph, "t", &json!({"kind": "constant", "value": 0.5}));
    let ids = [&[7, -1, 7][..], &[i32::MIN], &[9, 7]];
    let ids = ids.map(|ids| graph.constant(&Tensor::vector::<i32>(ids)));
    let lookups = group.id_offset(ids);
    let none = DIMS.map(|dim| graph.constant(&Tensor::new::<f32>(&[0, dim as i64], &[])));
    let found = find(&graph, &group.members(), &ids, &none, [&[], &[], &[]]);
    let found = found.after(lookups.offsets[0].node()).made();
    let session = Session::new(&graph).expect("a session");
    let fetches = [lookups.inverse, [0, 1, 2].map(|at| found.output(at))].concat();
    let got = session.get(&[], &fetches);
    let places = [0, 1, 2].map(|at: usize| got[at].values::<i32>());
    assert_eq!(places, [&[0, -1, 0][..], &[0], &[0, 1]]);
    let rows = [[0.5; DIM], [0.0; DIM], [0.5; DIM]].concat();
    assert_eq!(got[3].values::<f32>(), rows);
    assert_eq!(got[4].values::<f32>(), [0.5; NARROW]);
    assert_eq!(got[5].values::<f32>(), [0.5; 2 * DIM]);
    let keys = |table: Table<'_>| -> Vec<i64> {
        let rows = table.rows(&session);
        rows.into_iter().map(|(key, _)| key).collect()
    };
    assert_eq!(keys(group.wide), [7, 9]);
    assert_eq!(keys(group.narrow), [i64::from(i32::MIN)]);
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn members_of_a_group_may_be_empty() {
    let graph = Graph::new();
    let optimizer = &OPTIMIZERS[0];
    let batch = Batch::new(&graph, optimizer);
    let trainings = ["rows", "ids"].map(|form| train(&graph, optimizer, form, &batch));
    let session = Session::new(&graph).expect("a session");
    let scalars = [Tensor::scalar(1.0_f32), Tensor::scalar(0.0_f32)];
    for counts in [[2_usize, 0, 1], [0, 3, 0], [0, 0, 0]] {
        let keys = counts.map(|count| Tensor::vector(&[-5_i64, 6, 7][..count]));
        let grads = [0, 1, 2].map(|at: usize| {
            let dims = [counts[at] as i64, DIMS[at] as i64];
            Tensor::new(&dims, &vec![1.0_f32; counts[at] * DIMS[at]])
        });
        let mut feeds: Vec<_> = batch.ids.into_iter().zip(&keys).collect();
        feeds.extend(batch.slices.into_iter().zip(&grads));
        feeds.extend(batch.arguments.iter().copied().zip(&scalars));
        let fetches = trainings.each_ref().map(|(_, updated)| updated[0]);
        let updated = session.get(&feeds, &fetches);
        let distinct = counts[0].max(counts[2]) + counts[1];
        for updated in updated {
            assert_eq!(updated.value::<i64>(), distinct as i64);
        }
    }
    for (group, _) in trainings {
        let wide = [(-5, vec![-1.5; DIM]), (6, vec![-0.5; DIM])];
        assert_eq!(group.wide.rows(&session), wide);
        let narrow = [-5, 6, 7].map(|key| (key, vec![-0.5; NARROW]));
        assert_eq!(group.narrow.rows(&session), narrow);
    }
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn a_group_claims_what_was_prepared_and_resolves_the_others() {
    let graph = Graph::new();
    let initializer = json!({"kind": "random_uniform", "min": -1.0, "max": 1.0});
    let [group, alone] = ["group", "alone"].map(|name| Group::new(&graph, name, &initializer));
    let ids = [(); 3].map(|()| graph.placeholder::<i64>(&None));
    // The ids of the first two members are the same tensor, as those of tables that share ids are.
    let shared = [ids[0], ids[0], ids[2]];
    let prepare = |handles: [_; 2]| {
        let node = graph.node("MxRecPrepare").inputs(&handles);
        let node = node.inputs(&[ids[0]]).made();
        [0, 1, 2].map(|at| node.output(at))
    };
    let outputs = [group, alone].map(|group| prepare([group.wide.handle, group.narrow.handle]));
    let outputs = outputs.concat();
    let offsets = [(); 6].map(|()| graph.placeholder::<i64>(&None));
    let places = [(); 6].map(|()| graph.placeholder::<i32>(&None));
    let handles = group.members().map(|table| table.handle);
    let ahead = [&offsets[..3], &places[..3]];
    let many = resolve(&graph, &handles, &shared, ahead).made();
    let mut last = None;
    let each: Vec<_> = alone
        .members()
        .into_iter()
        .enumerate()
        .map(|(member, table)| {
            let own = 3 + member..4 + member;
            let ahead = [&offsets[own.clone()], &places[own]];
            let node = resolve(&graph, &[table.handle], &[shared[member]], ahead);
            let node = last.into_iter().fold(node, |node, last| node.after(last));
            let node = node.made();
            *last.insert(node)
        })
        .collect();
    let remove = group.wide.node("MxRecRemove").input(ids[1]).first();
    let remove_alone = alone.wide.node("MxRecRemove").input(ids[1]).first();
    let session = Session::new(&graph).expect("a session");
    let mut random = Random(5);
    for round in 0..6 {
        let batch = [(); 3].map(|()| keys(&mut random));
        let ahead = session.get(&[(ids[0], &batch[0])], &outputs);
        if round % 2 == 1 {
            // Keys of the batch are gone when it is claimed: that of the first table is void.
            let gone = [(ids[1], &batch[0])];
            session.get(&gone, &[remove, remove_alone]);
        }
        // Member 2 was not prepared.
        let none = Tensor::vector::<i64>(&[]);
        let nowhere = Tensor::new(&IDS, &[-1_i32; 12]);
        let mut feeds = vec![(ids[0], &batch[0]), (ids[2], &batch[2])];
        for (at, ahead) in ahead.chunks(3).enumerate() {
            feeds.extend(
                offsets[3 * at..]
                    .iter()
                    .copied()
                    .zip([&ahead[0], &ahead[1], &none]),
            );
            let inverse = [&ahead[2], &ahead[2], &nowhere];
            feeds.extend(places[3 * at..].iter().copied().zip(inverse));
        }
        let mut fetches: Vec<_> = (0..6).map(|at| many.output(at)).collect();
        fetches.extend(each.iter().map(|node| node.output(0)));
        fetches.extend(each.iter().map(|node| node.output(1)));
        let got = session.get(&feeds, &fetches);
        for member in 0..3 {
            assert_eq!(numbers(&got[member]), numbers(&got[6 + member]));
            let (places, expected) = (&got[3 + member], &got[9 + member]);
            assert_eq!(places.values::<i32>(), expected.values::<i32>());
        }
        if round % 2 == 0 {
            assert_eq!(got[1].values::<i64>(), ahead[1].values::<i64>());
        }
        assert_eq!(group.wide.rows(&session), alone.wide.rows(&session));
        assert_eq!(group.narrow.rows(&session), alone.narrow.rows(&session));
    }
    assert!(group.wide.size(&session) > 20 && group.narrow.size(&session) > 20);
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn every_optimizer_does_in_all_its_forms_what_the_oracle_does() {
    for (number, optimizer) in OPTIMIZERS.iter().enumerate() {
        let graph = Graph::new();
        let batch = Batch::new(&graph, optimizer);
        let forms = ["alone", "rows", "ids", "columns"];
        let trainings = forms.map(|form| train(&graph, optimizer, form, &batch));
        let session = Session::new(&graph).expect("a session");
        let mut oracles = [Oracle::new(DIM), Oracle::new(NARROW)];
        let mut random = Random(number as u64);
        for step in 1..=6 {
            let keys = [(); 3].map(|()| keys(&mut random));
            let all = floats(FIRSTS[3], &mut random);
            let own = [0, 1, 2].map(|member| columns(&all, member));
            let values: Vec<_> = (optimizer.arguments)(step)
                .into_iter()
                .map(Tensor::scalar)
                .collect();
            let mut feeds: Vec<_> = batch.ids.into_iter().zip(&keys).collect();
            feeds.push((batch.grad, &all));
            feeds.extend(batch.slices.into_iter().zip(&own));
            feeds.extend(batch.arguments.iter().copied().zip(&values));
            let fetches = trainings.each_ref().map(|(_, updated)| updated.as_slice());
            let updated = session.run(&feeds, &fetches.concat(), &[]);
            let updated = updated.expect(optimizer.name);
            let updated: Vec<i64> = updated.iter().map(Tensor::value).collect();
            let both = [0, 2]
                .map(|member: usize| keys[member].values::<i64>())
                .concat();
            let grads = [0, 2]
                .map(|member: usize| own[member].values::<f32>())
                .concat();
            let expected = oracles[0].step(optimizer, step, &both, &grads)
                + oracles[1].step(optimizer, step, keys[1].values(), own[1].values());
            // Two updates alone, and then one in each form.
            assert_eq!(updated[0] + updated[1], expected, "{}", optimizer.name);
            assert_eq!(updated[2..], [expected; 3], "{}", optimizer.name);
        }
        let [(first, _), others @ ..] = &trainings;
        for (oracle, table) in oracles.iter().zip([first.wide, first.narrow]) {
            oracle.compare(0, &table.rows(&session), optimizer.name);
            for (place, (name, _)) in optimizer.slots.iter().enumerate() {
                oracle.compare(1 + place, &table.slot(&session, name), name);
            }
        }
        for (other, _) in others {
            for (one, other) in [(first.wide, other.wide), (first.narrow, other.narrow)] {
                let rows = one.rows(&session);
                assert_eq!(other.rows(&session), rows, "{}", optimizer.name);
                for (name, _) in optimizer.slots {
                    let slot = one.slot(&session, name);
                    assert_eq!(other.slot(&session, name), slot, "{name}");
                }
            }
        }
    }
}

/// What is fed to a step of any form.
struct Batch<'g> {
    ids: [Output<'g>; 3],
    /// Gradient of the concatenation.
    grad: Output<'g>,
    /// Gradients of the members.
    slices: [Output<'g>; 3],
    arguments: Vec<Output<'g>>,
}

impl<'g> Batch<'g> {
    fn new(graph: &'g Graph, optimizer: &Optimizer) -> Batch<'g> {
        let arguments = (optimizer.arguments)(1);
        let scalar = |_| graph.placeholder::<f32>(&Some(Vec::new()));
        Batch {
            ids: [(); 3].map(|()| graph.placeholder::<i64>(&None)),
            grad: graph.placeholder::<f32>(&None),
            slices: [(); 3].map(|()| graph.placeholder::<f32>(&None)),
            arguments: arguments.into_iter().map(scalar).collect(),
        }
    }
}

/// A step on a group of its own: each table alone, or all members in an op.
fn train<'g>(
    graph: &'g Graph,
    optimizer: &Optimizer,
    form: &str,
    batch: &Batch<'g>,
) -> (Group<'g>, Vec<Output<'g>>) {
    let initializer = json!({"kind": "constant", "value": 0.5});
    let group = Group::new(graph, form, &initializer);
    let (number, numbers) = (optimizer.number, &batch.arguments);
    let handles = group.members().map(|table| table.handle);
    let reduced = |lookups: &Lookups<'g>| {
        [0, 1, 2].map(|member| reduce(graph, batch.slices[member], lookups.at(member)))
    };
    let updated = match form {
        "alone" => {
            let lookups = group.id_offset_each(batch.ids);
            let reduced = reduced(&lookups);
            // The members of a table as one batch.
            let both = |parts: [Output<'g>; 3]| {
                let axis = group.wide.scalar(0_i32);
                let node = graph.node("ConcatV2").inputs(&[parts[0], parts[2]]);
                node.input(axis).first()
            };
            let (offsets, grad) = (both(lookups.offsets), both(reduced));
            // One takes sums of gradients, the other one the gradients of ids.
            let (ids, of_ids) = (batch.ids[1], batch.slices[1]);
            vec![
                group.wide.update_rows(offsets, grad, number, numbers),
                group.narrow.update_ids(ids, of_ids, number, numbers),
            ]
        }
        "rows" => {
            let lookups = group.id_offset(batch.ids);
            let update = Update {
                handles: &handles,
                offsets: &lookups.offsets,
                grad: &reduced(&lookups),
                ..Update::default()
            };
            vec![update.step(graph, number, numbers)]
        }
        _ => {
            let lookups = group.id_offset(batch.ids);
            let own = [FIRSTS[0], FIRSTS[1], FIRSTS[2]].map(|first| first as i32);
            let own = graph.constant(&Tensor::vector(&own));
            let update = Update {
                handles: &handles,
                offsets: &lookups.offsets,
                inverse: &lookups.inverse,
                grad: &batch.slices,
                ..Update::default()
            };
            let update = match form {
                "columns" => Update {
                    grad: &[batch.grad; 3],
                    columns: &[own],
                    ..update
                },
                _ => update,
            };
            vec![update.step(graph, number, numbers)]
        }
    };
    (group, updated)
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn what_one_member_refuses_changes_no_table_of_the_group() {
    let graph = Graph::new();
    let group = Group::new(&graph, "t", &json!({"kind": "constant", "value": 0.5}));
    let ids = [(); 3].map(|()| graph.placeholder::<i64>(&None));
    let offsets = [(); 3].map(|()| graph.placeholder::<i64>(&None));
    let places = [(); 3].map(|()| graph.placeholder::<i32>(&None));
    let grads = [(); 3].map(|()| graph.placeholder::<f32>(&None));
    let firsts = graph.placeholder::<i32>(&None);
    let lookups = group.id_offset(ids);
    let handles = group.members().map(|table| table.handle);
    let node = resolve(&graph, &handles, &ids, [&[], &[]]).int("limit", 2);
    let limited = node.first();
    let side_by_side = group.embed(1, &lookups).output(0);
    let scalars = [group.wide.scalar(1.0_f32), group.wide.scalar(0.0_f32)];
    let many = Update {
        handles: &handles,
        offsets: &offsets,
        grad: &grads,
        ..Update::default()
    };
    let restored = Update {
        inverse: &places,
        columns: &[firsts],
        ..many
    };
    let restored = restored.step(&graph, SGD, &scalars);
    let many = many.step(&graph, SGD, &scalars);
    let session = Session::new(&graph).expect("a session");
    let batch = [&[1_i64, 2][..], &[1, 2], &[2, 3]].map(Tensor::vector);
    let feeds: Vec<_> = ids.into_iter().zip(&batch).collect();
    let kept = session.get(&feeds, &lookups.offsets);
    let before = [group.wide, group.narrow].map(|table| table.rows(&session));
    let refuse = |feeds: &[(Output<'_>, &Tensor)], fetch, code, part: &str| {
        session.refuses(feeds, fetch, code, &[part]);
        let after = [group.wide, group.narrow].map(|table| table.rows(&session));
        assert_eq!(after, before);
    };

    let full: Vec<i64> = (0..2000).collect();
    let batch = [&[1_i64, 9][..], &full, &[10]].map(Tensor::vector);
    let feeds: Vec<_> = ids.into_iter().zip(&batch).collect();
    let exhausted = Code::TF_RESOURCE_EXHAUSTED;
    refuse(&feeds, lookups.offsets[0], exhausted, "t_narrow");
    let batch = [&[1_i64, 9][..], &[3], &[10, 11, 12]].map(Tensor::vector);
    let feeds: Vec<_> = ids.into_iter().zip(&batch).collect();
    refuse(&feeds, limited, INVALID, "t_wide");
    let batch = [&[1_i64, 2][..], &[1, 2], &[2]].map(Tensor::vector);
    let feeds: Vec<_> = ids.into_iter().zip(&batch).collect();
    refuse(&feeds, side_by_side, INVALID, "t_wide");

    let ones = DIMS.map(|dim| Tensor::new(&[2, dim as i64], &vec![1.0_f32; 2 * dim]));
    let own = Tensor::vector(&[-1_i32; 3]);
    let place = Tensor::vector(&[0_i32, 1]);
    let mut feeds = vec![(firsts, &own)];
    feeds.extend(offsets.into_iter().zip(&kept));
    feeds.extend(grads.into_iter().zip(&ones));
    feeds.extend(places.map(|places| (places, &place)));
    let with = |at: usize, tensor| {
        let mut feeds = feeds.clone();
        feeds[at].1 = tensor;
        feeds
    };
    let strange = Tensor::vector(&[0_i64, 12345]);
    refuse(&with(2, &strange), many, INVALID, "t_narrow");
    refuse(&with(2, &strange), restored, INVALID, "t_narrow");
    refuse(&with(6, &ones[1]), many, INVALID, "t_wide");
    let outside = Tensor::vector(&[0_i32, 2]);
    refuse(&with(8, &outside), restored, INVALID, "t_narrow");
    let beyond = Tensor::vector(&[0_i32, 1, 0]);
    refuse(&with(0, &beyond), restored, INVALID, "t_narrow");
    let short = Tensor::vector(&[0_i32, 0]);
    refuse(&with(0, &short), restored, INVALID, "columns");

    // The last member has no column behind its last one.
    let behind = Tensor::vector(&[-1_i32, 0, 1]);
    refuse(&with(0, &behind), restored, INVALID, "t_wide");
    for (first, dim) in [
        (1, NARROW),
        (NARROW, 1),
        (0, NARROW + 1),
        (i32::MAX as usize, 1),
    ] {
        let node = graph.node("MxRecReduceColumns").input(grads[1]);
        let node = node.input(places[1]).input(offsets[1]);
        let node = node.int("first", first as i64).int("dim", dim as i64);
        let reduced = node.first();
        refuse(&feeds, reduced, INVALID, "MxRecReduceColumns");
    }

    // What is refused in no member is done in all.
    let got = session.get(&feeds, &[restored]);
    assert_eq!(got[0].value::<i64>(), 5);
    let rows = [(1, 1.0), (2, 2.0), (3, 1.0)];
    let rows = rows.map(|(key, sum)| (key, vec![0.5 - sum; DIM]));
    assert_eq!(group.wide.rows(&session), rows);
}
