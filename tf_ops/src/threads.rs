//! The one pool of threads of the process.

use mx_rec_kernels::{Pool, Result};
use std::sync::OnceLock;

/// The pool that all ops share, made when the first op runs: as many threads as TensorFlow's own
/// setting `TF_NUM_INTRAOP_THREADS` says, else as there are cores.
///
/// # Errors
/// If the system starts no threads; the next call tries again.
pub(crate) fn pool() -> Result<&'static Pool> {
    static POOL: OnceLock<Pool> = OnceLock::new();
    if let Some(pool) = POOL.get() {
        return Ok(pool);
    }
    let pool = Pool::new(threads(
        std::env::var("TF_NUM_INTRAOP_THREADS").ok().as_deref(),
    ))?;
    Ok(POOL.get_or_init(|| pool))
}

fn threads(setting: Option<&str>) -> usize {
    let wanted = setting
        .and_then(|text| text.trim().parse::<usize>().ok())
        .filter(|&n| n > 0);
    let threads = wanted
        .unwrap_or_else(|| std::thread::available_parallelism().map_or(1, std::num::NonZero::get));
    threads.min(1024)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_of_tensorflow_decides_and_nonsense_is_ignored() {
        assert_eq!(threads(Some("3")), 3);
        let cores = threads(None);
        assert!(cores >= 1);
        for ignored in ["0", "-2", "many", ""] {
            assert_eq!(threads(Some(ignored)), cores, "{ignored}");
        }
    }
}
