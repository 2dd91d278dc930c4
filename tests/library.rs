//! The built library: what it exports, what it needs, and how it behaves in a process without
//! TensorFlow.

use std::path::{Path, PathBuf};
use std::process::Command;

const ROOT: &str = env!("CARGO_MANIFEST_DIR");

/// Builds the library in the profile of this test and returns its path. (A cdylib is no dependency
/// of a test, so cargo does not build it of its own accord.)
fn library() -> PathBuf {
    let target = PathBuf::from(env!("CARGO_TARGET_TMPDIR"));
    let target = target.parent().expect("the target directory");
    let built = Command::new(env!("CARGO"))
        .args([
            "build",
            "--locked",
            "--quiet",
            "-p",
            "mx_rec",
            "--target-dir",
        ])
        .arg(target)
        .current_dir(ROOT)
        .status()
        .expect("cargo runs");
    assert!(built.success());
    target.join("debug/libmx_rec.so")
}

/// Runs a tool and returns what it prints.
fn output(tool: &str, arguments: &[&str], file: &Path) -> String {
    let run = Command::new(tool).args(arguments).arg(file).output();
    let run = run.unwrap_or_else(|error| panic!("{tool} (binutils) does not run: {error}"));
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    String::from_utf8(run.stdout).expect("text")
}

#[test]
fn the_library_exports_its_functions_and_nothing_else() {
    let symbols = output("nm", &["-D", "--defined-only"], &library());
    let mut names: Vec<&str> = symbols
        .lines()
        .filter_map(|line| line.split_whitespace().last())
        .collect();
    names.sort_unstable();
    assert_eq!(
        names,
        [
            "mx_rec_check_table",
            "mx_rec_checkpoint_describe",
            "mx_rec_checkpoint_diff",
            "mx_rec_checkpoint_discard",
            "mx_rec_checkpoint_publish",
            "mx_rec_checkpoint_row",
            "mx_rec_checkpoint_stage",
            "mx_rec_checkpoint_verify",
            "mx_rec_commit_begin",
            "mx_rec_commit_clean",
            "mx_rec_commit_discard",
            "mx_rec_commit_finish",
            "mx_rec_commit_flush",
            "mx_rec_commit_manifest",
            "mx_rec_commit_place",
            "mx_rec_commit_recover",
            "mx_rec_commit_undo",
            "mx_rec_free",
            "mx_rec_infer_shapes",
            "mx_rec_load_message",
            "mx_rec_load_status",
            "mx_rec_op_definitions",
            "mx_rec_optimizers",
            "mx_rec_plan",
            "mx_rec_tables",
            "mx_rec_trace_start",
            "mx_rec_trace_stop",
            "mx_rec_version"
        ]
    );
}

#[test]
fn the_library_has_its_name_and_needs_no_tensorflow() {
    let dynamic = output("readelf", &["-d"], &library());
    assert!(
        dynamic.contains("Library soname: [libmx_rec.so]"),
        "{dynamic}"
    );
    for line in dynamic.lines().filter(|line| line.contains("NEEDED")) {
        assert!(!line.to_lowercase().contains("tensorflow"), "{line}");
        assert!(!line.contains("stdc++"), "{line}");
    }
}

#[test]
fn a_process_without_tensorflow_is_told_so_and_lives_on() {
    let library = library();
    let host = Path::new(env!("CARGO_TARGET_TMPDIR")).join("host");
    let compiled = cc::Build::new()
        .target(env!("MX_REC_TARGET"))
        .host(env!("MX_REC_TARGET"))
        .opt_level(1)
        .out_dir(env!("CARGO_TARGET_TMPDIR"))
        .cargo_metadata(false)
        .get_compiler()
        .to_command()
        .args(["-Wall", "-Werror", "-Wno-pedantic", "-I"])
        .arg(Path::new(ROOT).join("include"))
        .arg(Path::new(ROOT).join("tests/c/host.c"))
        .arg("-o")
        .arg(&host)
        .arg("-ldl")
        .status()
        .expect("a C compiler runs");
    assert!(compiled.success());
    let run = Command::new(&host)
        .arg(&library)
        .arg(env!("CARGO_PKG_VERSION"))
        .output();
    let run = run.expect("the host runs");
    assert!(
        run.status.success(),
        "{}",
        String::from_utf8_lossy(&run.stderr)
    );
    assert_eq!(String::from_utf8_lossy(&run.stdout), "host: ok\n");
}
