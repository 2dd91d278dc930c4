//! Prints the bindings of `tf_ops/include/tf_c_abi.h`.

use std::process::ExitCode;

fn main() -> ExitCode {
    let Some(header) = std::env::args().nth(1) else {
        eprintln!("usage: tf_bindings HEADER");
        return ExitCode::from(2);
    };
    let made = bindgen::Builder::default()
        .header(header)
        .dynamic_library_name("TensorFlow")
        .dynamic_link_require_all(true)
        .allowlist_item("TF_.*")
        .default_enum_style(bindgen::EnumVariation::Consts)
        .prepend_enum_name(false)
        .wrap_unsafe_ops(true)
        .layout_tests(false)
        .generate_comments(false)
        .generate();
    match made {
        Ok(bindings) => {
            print!("{bindings}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            eprintln!("the header cannot be bound: {error}");
            ExitCode::FAILURE
        }
    }
}
