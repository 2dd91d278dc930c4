//! The C header of our bindings agrees with TensorFlow's own.

use std::path::{Path, PathBuf};

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// The `include` directory of a TensorFlow 2.x wheel.
fn tensorflow_headers() -> PathBuf {
    let given = std::env::var_os("MX_REC_TF_HEADERS").map(PathBuf::from);
    let headers =
        given.unwrap_or_else(|| Path::new(ROOT).join(".cache/tf-headers/tensorflow/include"));
    assert!(
        headers.join("tensorflow/c/c_api.h").is_file(),
        "there are no TensorFlow headers in {}: run scripts/test, which fetches them, or set \
         MX_REC_TF_HEADERS to the include directory of a TensorFlow 2.x wheel",
        headers.display()
    );
    headers
}

/// `NAME = value` of the enums that our header repeats.
fn numbers(header: &str) -> Vec<(String, String)> {
    let start = header.find("typedef enum TF_DataType").expect("the enums");
    let end = header.find("} TF_Code;").expect("the end of the enums");
    header[start..end]
        .split(['{', ',', '}'])
        .filter_map(|item| item.split_once('='))
        .map(|(name, value)| (name.trim().to_owned(), value.trim().to_owned()))
        .collect()
}

#[test]
fn our_declarations_compile_beside_tensorflows() {
    let ours = Path::new(ROOT).join("tf_ops/include");
    let header = std::fs::read_to_string(ours.join("tf_c_abi.h")).expect("our header");
    let mut build = cc::Build::new();
    build
        .target(env!("MX_REC_TARGET"))
        .host(env!("MX_REC_TARGET"))
        .opt_level(0)
        .out_dir(env!("CARGO_TARGET_TMPDIR"))
        .cargo_metadata(false)
        .flag("-std=c11")
        .include(ours)
        .include(tensorflow_headers())
        .file(Path::new(ROOT).join("tests/c/headers.c"));
    let numbers = numbers(&header);
    assert_eq!(numbers.len(), 12);
    for (name, value) in &numbers {
        let name = match name.as_str() {
            "TF_OK" => "MX_REC_OK_CODE".to_owned(),
            other => other.replacen("TF_", "MX_REC_", 1),
        };
        build.define(&name, value.as_str());
    }
    if let Err(error) = build.try_compile("headers") {
        panic!("tf_ops/include/tf_c_abi.h conflicts with TensorFlow's headers: {error}");
    }
}
