//! What the system says of processes and directories, where the standard library has no name for
//! the call.

use std::ffi::CString;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

/// Swaps two directories in one step.
///
/// # Errors
/// What the system says; a file system need not be able to.
pub(crate) fn exchange(one: &Path, other: &Path) -> io::Result<()> {
    let one = CString::new(one.as_os_str().as_bytes())?;
    let other = CString::new(other.as_os_str().as_bytes())?;
    // SAFETY: both are strings with a zero byte at the end, and live until the call returns. By its
    // number, since older systems have no function of this name.
    let status = unsafe {
        libc::syscall(
            libc::SYS_renameat2,
            libc::AT_FDCWD,
            one.as_ptr(),
            libc::AT_FDCWD,
            other.as_ptr(),
            libc::RENAME_EXCHANGE,
        )
    };
    if status == 0 {
        Ok(())
    } else {
        Err(io::Error::last_os_error())
    }
}

/// Whether there is a process of that number on this host.
pub(crate) fn process_exists(process: i32) -> bool {
    // SAFETY: signal 0 is sent to no process, and no memory is touched.
    let status = unsafe { libc::kill(process, 0) };
    status == 0 || io::Error::last_os_error().raw_os_error() != Some(libc::ESRCH)
}

/// In how many parts of a second the system tells when processes were started.
pub(crate) fn ticks_per_second() -> f64 {
    // SAFETY: the call takes a number and touches no memory.
    let ticks = unsafe { libc::sysconf(libc::_SC_CLK_TCK) };
    if ticks > 0 {
        ticks as f64
    } else {
        100.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_exists_and_no_process_has_the_greatest_number() {
        assert!(process_exists(std::process::id() as i32));
        assert!(!process_exists(i32::MAX));
        assert!(ticks_per_second() >= 1.0);
    }

    #[test]
    fn directories_that_are_not_there_cannot_be_exchanged() {
        let error = exchange(Path::new("/none/one"), Path::new("/none/other")).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::NotFound);
    }
}
