//! Link settings of the plugin.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The library's name is fixed, and a symbol that nobody defines (an accidental link against
    // TensorFlow) fails the build instead of the user's import.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmx_rec.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
    // Tests compile C for the target that cargo builds for.
    if let Ok(target) = std::env::var("TARGET") {
        println!("cargo:rustc-env=MX_REC_TARGET={target}");
    }
}
