//! Link settings of the plugin.

fn main() {
    println!("cargo:rerun-if-changed=build.rs");
    // The library's name is fixed, and a symbol that nobody defines (an accidental link against
    // TensorFlow) fails the build instead of the user's import.
    println!("cargo:rustc-cdylib-link-arg=-Wl,-soname,libmx_rec.so");
    println!("cargo:rustc-cdylib-link-arg=-Wl,-z,defs");
}
