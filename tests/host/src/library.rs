//! Opening TensorFlow's libraries and loading the plugin into them.

use crate::status::Status;
use std::ffi::{CStr, CString};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use tensorflow_sys_runtime as tf;

/// The libraries of a 2.x wheel: the one with the C API, and the one that it needs.
const LIBRARIES: [&str; 2] = ["libtensorflow_cc.so.2", "libtensorflow_framework.so.2"];

/// The name under which tensorflow-sys-runtime looks for the C API.
const EXPECTED: &str = "libtensorflow.so";

/// Opens TensorFlow and has it load the plugin, once in a process.
///
/// # Panics
/// With the reason, if there is no TensorFlow in `MX_REC_HOST_TENSORFLOW`, or it refuses the
/// plugin.
pub fn load_plugin() {
    static LOADED: OnceLock<()> = OnceLock::new();
    LOADED.get_or_init(|| {
        open_tensorflow();
        let path = plugin_path();
        let name = CString::new(path.as_os_str().as_encoded_bytes()).expect("a path");
        let status = Status::new();
        // SAFETY: the path ends with a zero; the handle is kept, as TensorFlow unloads nothing.
        unsafe { tf::TF_LoadLibrary(name.as_ptr(), status.raw()) };
        if let Err(error) = status.check() {
            panic!("TensorFlow refused {}: {error}", path.display());
        }
    });
}

/// Opens the C API of the wheel.
fn open_tensorflow() {
    let wheel = given("MX_REC_HOST_TENSORFLOW");
    let wheel = wheel.expect("MX_REC_HOST_TENSORFLOW names the directory of a wheel's libraries");
    let files = LIBRARIES.map(|library| existing(&wheel.join(library)));
    // tensorflow-sys-runtime opens a file of one name, in a directory that a variable names. The
    // loader looks for what that file needs in the directory of the link.
    let links = std::env::temp_dir().join(format!("mx_rec_host-{}", std::process::id()));
    std::fs::create_dir_all(&links).expect("a directory for links");
    for (library, file) in LIBRARIES.iter().zip(&files) {
        symlink(file, links.join(library)).expect("a link");
    }
    symlink(&files[0], links.join(EXPECTED)).expect("a link");
    // Before TensorFlow has a thread that could read the environment.
    std::env::set_var("TENSORFLOW_DIR", &links);
    if std::env::var_os("TF_CPP_MIN_LOG_LEVEL").is_none() {
        std::env::set_var("TF_CPP_MIN_LOG_LEVEL", "2");
    }
    let loaded = tf::library::load();
    std::fs::remove_dir_all(&links).expect("the links are ours");
    loaded.unwrap_or_else(|error| panic!("{}: {error}", wheel.display()));
}

/// The plugin: what `MX_REC_PLUGIN` names, else one that is built now, in the profile of tests.
///
/// # Panics
/// If it cannot be built.
pub fn plugin_path() -> PathBuf {
    if let Some(plugin) = given("MX_REC_PLUGIN") {
        return existing(&plugin);
    }
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let program = std::env::current_exe().expect("the path of this program");
    // target/debug/deps/<program>
    let target = program.ancestors().nth(3).expect("a target directory");
    let built = Command::new(env!("CARGO"))
        .args(["build", "--locked", "--quiet", "-p", "mx_rec"])
        .arg("--target-dir")
        .arg(target)
        .current_dir(root)
        .status()
        .expect("cargo runs");
    assert!(built.success(), "the plugin could not be built");
    target.join("debug/libmx_rec.so")
}

/// The absolute path in a variable.
fn given(variable: &str) -> Option<PathBuf> {
    let path = PathBuf::from(std::env::var_os(variable).filter(|path| !path.is_empty())?);
    // cargo runs tests in the directory of their crate.
    assert!(
        path.is_absolute(),
        "{variable} is no absolute path: {path:?}"
    );
    Some(path)
}

/// The file at a path, links followed.
fn existing(path: &Path) -> PathBuf {
    let file = path.canonicalize();
    file.unwrap_or_else(|error| panic!("{}: {error}", path.display()))
}

/// The version of TensorFlow, as it says.
pub fn version() -> String {
    load_plugin();
    // SAFETY: takes no argument and gives a text that lives as long as TensorFlow.
    let text = unsafe { CStr::from_ptr(tf::TF_Version()) };
    text.to_string_lossy().into_owned()
}

/// Every op that TensorFlow knows, as bytes, an OpList.
pub fn op_list() -> Vec<u8> {
    load_plugin();
    // SAFETY: the buffer is ours, read while it lives and deleted once.
    unsafe {
        let buffer = tf::TF_GetAllOpList();
        let bytes =
            std::slice::from_raw_parts((*buffer).data.cast::<u8>(), (*buffer).length).to_vec();
        tf::TF_DeleteBuffer(buffer);
        bytes
    }
}
