//! Prints docs/ops.md.

fn main() {
    print!("{}", mx_rec_tf_ops::ops::render());
}
