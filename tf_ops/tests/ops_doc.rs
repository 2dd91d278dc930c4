//! docs/ops.md says what the definitions of the ops say.

#[test]
fn the_page_of_ops_is_made_from_the_definitions() {
    let page = include_str!("../../docs/ops.md");
    assert!(
        page == mx_rec_tf_ops::ops::render(),
        "docs/ops.md differs from the definitions: run\n    \
         cargo run -p mx_rec_tf_ops --example ops_doc > docs/ops.md"
    );
}

#[test]
fn every_op_is_documented_and_named_once() {
    let mut names: Vec<&str> = mx_rec_tf_ops::ops::definitions()
        .iter()
        .map(|op| op.name)
        .collect();
    let all = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), all);
    for op in mx_rec_tf_ops::ops::definitions() {
        assert!(op.name.starts_with("MxRec"), "{}", op.name);
        let texts = [op.doc, op.errors].into_iter();
        let args = op.inputs.iter().chain(op.outputs).map(|arg| arg.doc);
        for text in texts
            .chain(args)
            .chain(op.attrs.iter().map(|attr| attr.doc))
        {
            assert!(!text.is_empty(), "{}", op.name);
        }
    }
}
