//! Small graphs, their plans, and the nodes that move: tests/graph/golden, one case a file.
//!
//! A file is a sentence, the graph (`== graph`), and what the pass makes of it.
//! `MX_REC_REWRITE_GOLDEN=1 cargo test -p mx_rec_tf_ops --test graph` writes the latter anew; read
//! the difference before you commit it.

use super::notation::{op_list, render, GraphText};
use mx_rec_tf_ops::graph::{Plan, Repeated};
use std::fmt::Write;
use std::fs;
use std::path::{Path, PathBuf};

fn files() -> Vec<PathBuf> {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/graph/golden");
    let listed = fs::read_dir(folder).expect("the folder of cases");
    let mut files: Vec<PathBuf> = listed.map(|entry| entry.expect("a case").path()).collect();
    files.sort();
    files
}

/// What the pass makes of a graph, as text.
fn answer(graph: &GraphText) -> String {
    let plan = Plan::make(&graph.encode(), &op_list(), true, None).expect("a plan");
    let mut text = String::from("== plan\n");
    for lookup in &plan.lookups {
        let verb = match lookup.iterator {
            Some(iterator) => format!("moves to {iterator}"),
            None => "stays".to_owned(),
        };
        writeln!(
            text,
            "{:?} {} of {} ({}) by {} {verb}: {}",
            lookup.kind, lookup.node, lookup.table, lookup.handle, lookup.ids, lookup.reason
        )
        .expect("text");
    }
    for sums in &plan.sums {
        let verb = if sums.fuses { "fuses" } else { "stays" };
        writeln!(
            text,
            "\n== sums over bags of {} of {}\n{verb}: {}",
            sums.lookup, sums.table, sums.reason
        )
        .expect("text");
        if let Some(weights) = &sums.weights {
            let (tensor, axis) = (&weights.tensor, weights.axis);
            writeln!(text, "weights {tensor}, axis {axis}").expect("text");
        }
        for sum in &sums.sums {
            let kept = if sum.keep_dims {
                ", keeps the dimension"
            } else {
                ""
            };
            writeln!(text, "{:?} {}{kept}", sum.combiner, sum.node).expect("text");
        }
        for shape in &sums.shapes {
            writeln!(text, "shape {shape}").expect("text");
        }
        for gradient in &sums.gradients {
            writeln!(
                text,
                "gradient {} for {}: {}{}",
                gradient.tensor,
                gradient.readers.join(", "),
                repeated(&gradient.repeated),
                waits_for(&gradient.waits)
            )
            .expect("text");
        }
        if !sums.left_out.is_empty() {
            writeln!(text, "left out {}", sums.left_out.join(", ")).expect("text");
        }
    }
    for concat in &plan.concats {
        let verb = if concat.fuses { "fuses" } else { "stays" };
        writeln!(
            text,
            "\n== concatenation {}\n{verb}: {}",
            concat.node, concat.reason
        )
        .expect("text");
        for part in &concat.parts {
            writeln!(text, "part {} of {}", part.lookup, part.table).expect("text");
        }
        for shape in &concat.shapes {
            writeln!(text, "shape {shape}").expect("text");
        }
        for columns in &concat.gradients {
            writeln!(
                text,
                "gradient {} for {}: columns {} to {} of {}{}",
                columns.tensor,
                columns.readers.join(", "),
                columns.first,
                columns.first + columns.dim,
                columns.whole,
                waits_for(&columns.waits)
            )
            .expect("text");
        }
        if !concat.left_out.is_empty() {
            writeln!(text, "left out {}", concat.left_out.join(", ")).expect("text");
        }
    }
    for group in &plan.updates {
        writeln!(text, "\n== updates: {}", group.reason).expect("text");
        for update in &group.updates {
            let waits = waits_for(&update.waits);
            writeln!(text, "{}{waits}", update.node).expect("text");
            for member in &update.members {
                let whole = match &member.whole {
                    Some(whole) => format!(", columns from {} of {whole}", member.first),
                    None => String::new(),
                };
                writeln!(text, "  {}{whole}", member.sum).expect("text");
            }
            for (what, names) in [("left out", &update.left_out), ("ends", &update.ends)] {
                if !names.is_empty() {
                    writeln!(text, "  {what} {}", names.join(", ")).expect("text");
                }
            }
        }
    }
    for group in &plan.together {
        writeln!(text, "\n== one {}: {}", group.op, group.reason).expect("text");
        for node in &group.nodes {
            writeln!(text, "{node}").expect("text");
        }
    }
    for group in &plan.requests {
        let moves = match group.iterator {
            Some(iterator) => format!(", moving to {iterator}"),
            None => String::new(),
        };
        writeln!(text, "\n== requests{moves}: {}", group.reason).expect("text");
        for node in &group.nodes {
            writeln!(text, "{node}").expect("text");
        }
    }
    for (at, iterator) in plan.iterators.iter().enumerate() {
        let [start, length] = iterator.graph;
        let moved = render(&plan.graphs[start..start + length]);
        writeln!(
            text,
            "\n== iterator {at}\n{:?} {} read by {}, {} components, started by {:?}, feeds {:?}",
            iterator.kind,
            iterator.iterator,
            iterator.get_next,
            iterator.components,
            iterator.initializers,
            iterator.lookups
        )
        .expect("text");
        for ids in &iterator.ids {
            let from = match ids.component {
                Some(component) => format!("component {component}"),
                None => "computed".to_owned(),
            };
            writeln!(text, "ids {}: {from}, type {}", ids.tensor, ids.dtype).expect("text");
        }
        if !iterator.bags.is_empty() {
            writeln!(text, "bags {}", iterator.bags.join(", ")).expect("text");
        }
        let names: Vec<&str> = moved
            .lines()
            .filter(|line| !line.starts_with(' '))
            .filter_map(|line| line.split_once(" = ").map(|(name, _)| name))
            .collect();
        assert_eq!(names, iterator.nodes);
        writeln!(text, "-- moved\n{}", moved.trim_end()).expect("text");
    }
    text
}

fn waits_for(waits: &[String]) -> String {
    match waits {
        [] => String::new(),
        waits => format!(", waits for {}", waits.join(", ")),
    }
}

fn repeated(of: &Repeated) -> String {
    match of {
        Repeated::Tensor(tensor) => tensor.clone(),
        Repeated::Scaled { op, by, of } => format!("{op}({}, {by})", repeated(of)),
        Repeated::Added(all) => {
            let all: Vec<String> = all.iter().map(repeated).collect();
            format!("AddN({})", all.join(", "))
        }
    }
}

#[test]
fn the_plans_of_small_graphs_are_those_of_their_files() {
    let rewrite = std::env::var_os("MX_REC_REWRITE_GOLDEN").is_some();
    let mut wrong = Vec::new();
    let files = files();
    assert!(files.len() >= 25, "only {} cases", files.len());
    for file in files {
        let text = fs::read_to_string(&file).expect("a case");
        let (title, rest) = text.split_once("\n== graph\n").expect("a graph");
        let graph = rest.split("\n== plan\n").next().expect("a graph");
        let answer = answer(&GraphText::parse(graph));
        let wanted = format!("{title}\n== graph\n{}\n\n{answer}", graph.trim_end());
        if wanted != text {
            if rewrite {
                fs::write(&file, &wanted).expect("the case can be written");
            } else {
                wrong.push(format!("{}:\n{wanted}", file.display()));
            }
        }
    }
    assert!(
        wrong.is_empty(),
        "these plans differ from their files (MX_REC_REWRITE_GOLDEN=1 writes them):\n{}",
        wrong.join("\n")
    );
}

#[test]
fn what_moves_is_the_original_byte_for_byte_but_for_its_place() {
    for file in files() {
        let text = fs::read_to_string(&file).expect("a case");
        let (_, rest) = text.split_once("\n== graph\n").expect("a graph");
        let graph = GraphText::parse(rest.split("\n== plan\n").next().expect("a graph"));
        let plan = Plan::make(&graph.encode(), &op_list(), true, None).expect("a plan");
        for iterator in &plan.iterators {
            let [start, length] = iterator.graph;
            let nodes = iterator.nodes.iter().map(|name| {
                let found = graph.nodes.iter().find(|node| node.name == *name);
                found.expect("a node of the graph").clone().unplaced()
            });
            let moved = &plan.graphs[start..start + length];
            let mut expected = GraphText {
                nodes: nodes.collect(),
                functions: Vec::new(),
            };
            // The functions that are there must be those of the graph; which ones are, the files
            // say.
            let shown = render(moved);
            for function in &graph.functions {
                if shown.contains(&format!("function {}", function.name)) {
                    expected.functions.push(function.clone());
                }
            }
            let mut bytes = expected.encode();
            if expected.functions.is_empty() {
                // The notation always writes a library; the pass writes none that is empty.
                let empty = bytes.windows(2).rposition(|pair| pair == [0x12, 0]);
                let empty = empty.expect("an empty library");
                bytes.drain(empty..empty + 2);
            }
            assert_eq!(moved, bytes, "{}", file.display());
        }
    }
}
