//! Sessions, which run graphs.

use crate::graph::{Graph, Node, Output};
use crate::status::{Code, Result, Status};
use crate::tensor::Tensor;
use std::ffi::c_int;
use std::marker::PhantomData;
use tensorflow_sys_runtime as tf;

/// An owned session of a graph; any number of threads may run it at once.
pub struct Session<'g> {
    raw: *mut tf::TF_Session,
    graph: PhantomData<&'g Graph>,
}

// SAFETY: sessions are made for concurrent runs.
unsafe impl Send for Session<'_> {}
// SAFETY: as above.
unsafe impl Sync for Session<'_> {}

impl<'g> Session<'g> {
    /// Opens a session.
    ///
    /// # Errors
    /// TensorFlow's.
    pub fn new(graph: &'g Graph) -> Result<Session<'g>> {
        let status = Status::new();
        // SAFETY: the graph is alive; the options are ours, copied and deleted once.
        let raw = unsafe {
            let options = tf::TF_NewSessionOptions();
            let raw = tf::TF_NewSession(graph.raw(), options, status.raw());
            tf::TF_DeleteSessionOptions(options);
            raw
        };
        status.check().map(|()| Session {
            raw,
            graph: PhantomData,
        })
    }

    /// What outputs are, with other values for those that are fed.
    ///
    /// # Panics
    /// If a node fails, with what it says.
    #[track_caller]
    pub fn get(&self, feeds: &[(Output<'g>, &Tensor)], fetches: &[Output<'g>]) -> Vec<Tensor> {
        let fetched = self.run(feeds, fetches, &[]);
        fetched.unwrap_or_else(|failure| panic!("{failure}"))
    }

    /// Asserts that an output fails with a code and a message that has all these parts.
    ///
    /// # Panics
    /// If it does not.
    #[track_caller]
    pub fn refuses(
        &self,
        feeds: &[(Output<'g>, &Tensor)],
        fetch: Output<'g>,
        code: Code,
        parts: &[&str],
    ) {
        let failure = self.run(feeds, &[fetch], &[]).err().expect("a refusal");
        assert_eq!(failure.code, code, "{failure}");
        for part in parts {
            assert!(failure.message.contains(part), "{part}: {failure}");
        }
    }

    /// Runs what the fetched outputs need, with other values for those that are fed.
    ///
    /// # Errors
    /// That of the first node that failed.
    pub fn run(
        &self,
        feeds: &[(Output<'g>, &Tensor)],
        fetches: &[Output<'g>],
        targets: &[Node<'g>],
    ) -> Result<Vec<Tensor>> {
        let status = Status::new();
        let inputs: Vec<_> = feeds.iter().map(|(output, _)| output.raw()).collect();
        let values: Vec<_> = feeds.iter().map(|(_, tensor)| tensor.raw()).collect();
        let outputs: Vec<_> = fetches.iter().map(|output| output.raw()).collect();
        let targets: Vec<_> = targets.iter().map(|node| node.raw().cast_const()).collect();
        let mut fetched = vec![std::ptr::null_mut(); fetches.len()];
        // SAFETY: session, nodes and tensors are alive; each list is as long as is said, and the
        // last is written only if the run succeeds, with tensors that are ours then.
        unsafe {
            tf::TF_SessionRun(
                self.raw,
                std::ptr::null(),
                inputs.as_ptr(),
                values.as_ptr(),
                inputs.len() as c_int,
                outputs.as_ptr(),
                fetched.as_mut_ptr(),
                outputs.len() as c_int,
                targets.as_ptr(),
                targets.len() as c_int,
                std::ptr::null_mut(),
                status.raw(),
            );
        }
        status.check()?;
        // SAFETY: as above.
        Ok(fetched
            .into_iter()
            .map(|raw| unsafe { Tensor::own(raw) })
            .collect())
    }
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let status = Status::new();
        // SAFETY: owned, closed and deleted once; no run borrows it any more.
        unsafe {
            tf::TF_CloseSession(self.raw, status.raw());
            tf::TF_DeleteSession(self.raw, status.raw());
        }
    }
}
