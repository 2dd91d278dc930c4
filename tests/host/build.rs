//! Tells the tests whether there is a TensorFlow to host the plugin: without one, each is ignored
//! and says why.

fn main() {
    println!("cargo:rustc-check-cfg=cfg(has_tensorflow)");
    println!("cargo:rerun-if-changed=build.rs");
    println!("cargo:rerun-if-env-changed=MX_REC_HOST_TENSORFLOW");
    match std::env::var_os("MX_REC_HOST_TENSORFLOW") {
        Some(directory) if !directory.is_empty() => println!("cargo:rustc-cfg=has_tensorflow"),
        _ => println!(
            "cargo:warning=the op tests without Python are left out: MX_REC_HOST_TENSORFLOW does \
             not name the directory of a TensorFlow 2.x wheel's libtensorflow_cc.so.2"
        ),
    }
}
