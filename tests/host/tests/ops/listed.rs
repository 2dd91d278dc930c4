//! The ops that TensorFlow lists.

use crate::oracle::OPTIMIZERS;
use mx_rec_host_tests::{op_list, version};
use std::collections::BTreeSet;

const DOCS: &str = include_str!("../../../../docs/ops.md");

/// The plugin's ops in a serialized OpList: field 1 of the list is an op, field 1 of the op its
/// name.
fn ours(list: &[u8]) -> BTreeSet<String> {
    const PREFIX: &[u8] = b"MxRec";
    let places = list.windows(PREFIX.len() + 2).enumerate();
    let places = places.filter(|(_, bytes)| bytes[0] == 0x0A && &bytes[2..] == PREFIX);
    places
        .map(|(at, bytes)| {
            let name = &list[at + 2..][..bytes[1].into()];
            String::from_utf8(name.to_vec()).expect("a name")
        })
        .collect()
}

#[test]
#[cfg_attr(not(has_tensorflow), ignore = "MX_REC_HOST_TENSORFLOW is not set")]
fn tensorflow_lists_the_ops_of_the_docs_and_no_other() {
    assert!(version().starts_with("2."), "{}", version());
    let listed = ours(&op_list());
    let documented = DOCS
        .lines()
        .filter_map(|line| line.strip_prefix("## MxRec"));
    let documented: BTreeSet<String> = documented.map(|name| format!("MxRec{name}")).collect();
    assert!(documented.len() > 30, "{documented:?}");
    assert_eq!(listed, documented);
}

#[test]
fn every_op_of_the_docs_is_run_by_these_tests() {
    let sources = [
        include_str!("ahead.rs"),
        include_str!("cluster.rs"),
        include_str!("fields.rs"),
        include_str!("grouped.rs"),
        include_str!("lookup.rs"),
        include_str!("refused.rs"),
        include_str!("saved.rs"),
        include_str!("sessions.rs"),
        include_str!("table.rs"),
        include_str!("update.rs"),
        include_str!("oracle.rs"),
        include_str!("pooled.rs"),
        include_str!("pooled_many.rs"),
    ];
    let headings = DOCS.lines().filter_map(|line| line.strip_prefix("## "));
    for op in headings.filter(|heading| heading.starts_with("MxRec")) {
        let quoted = format!("\"{op}\"");
        assert!(
            sources.iter().any(|source| source.contains(&quoted)),
            "no test runs {op}"
        );
    }
}

#[test]
fn the_oracle_has_every_optimizer_of_the_docs() {
    let (_, section) = DOCS.split_once("## Optimizers").expect("optimizers");
    let headings = section.lines().filter_map(|line| line.strip_prefix("### "));
    // Those with a slot for a whole row are no matter of one column.
    let by_column = headings.filter(|heading| !heading.contains("rowwise_"));
    let documented: BTreeSet<String> = by_column.map(String::from).collect();
    let mine = OPTIMIZERS.iter();
    let mine = mine.map(|optimizer| format!("{}: {}", optimizer.number, optimizer.name));
    assert_eq!(mine.collect::<BTreeSet<String>>(), documented);
}
