/* What libmx_rec.so exports beside its ops.
 *
 * Loading the library registers its ops with the TensorFlow of the process, if there is one. The
 * first functions tell how that went. All strings end with a zero byte and live as long as the
 * library; all functions may be called from any thread.
 */
#ifndef MX_REC_H_
#define MX_REC_H_

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The numbers never change their meaning. */
enum mx_rec_status {
  MX_REC_OK = 0,               /* the ops are registered */
  MX_REC_NO_TENSORFLOW = 1,    /* the process has loaded no TensorFlow */
  MX_REC_MISSING_FUNCTION = 2, /* its TensorFlow lacks a function of the C API */
  MX_REC_REFUSED = 3,          /* TensorFlow refused an op or a kernel */
  MX_REC_NOT_RUN = 4,          /* the load hook did not run */
  MX_REC_PANICKED = 5,         /* a defect of the library */
  MX_REC_OTHER_COPY = 6        /* another copy of the library has registered the ops in this process */
};

/* "MAJOR.MINOR.PATCH". */
const char* mx_rec_version(void);

/* One of mx_rec_status. */
int mx_rec_load_status(void);

/* What the status means and what to do, for a person. */
const char* mx_rec_load_message(void);

/* Frees a result of one of the functions below; null is allowed. */
void mx_rec_free(unsigned char* result, size_t result_size);

/* How ops and tables are defined. None needs TensorFlow.
 *
 * Each returns 0, and *result is JSON, UTF-8; or 1, and *result is the text of an error, UTF-8. In
 * both cases it does not end with a zero byte, has *result_size bytes and goes back to mx_rec_free.
 * None aborts.
 */

/* [{"name": s, "doc": s, "inputs": [ARG, ...], "outputs": [ARG, ...], "attrs": [{"spec": s, "doc":
 * s}, ...], "errors": s, "stateful": b, "differentiable": b}, ...], in the order of docs/ops.md.
 * ARG is {"name": s, "type": s, "shape": s, "doc": s}.
 */
int mx_rec_op_definitions(unsigned char** result, size_t* result_size);

/* [{"name": s, "doc": s, "numbers": [{"name": s, "range": {"rule": s, "least": x, "most": x,
 * "without": x or null}, "doc": s}, ...], "slots": [{"name": s, "initial": x, "starts_at": s or
 * null, "per_row": b}, ...], "ignores_zeros": b}, ...]: the optimizers by their numbers in graphs.
 * numbers are their hyperparameters in order; a range is closed but for "without", which is one of
 * its ends.
 * starts_at is the hyperparameter that says what a slot starts at, which is initial by default.
 * per_row: the slot is one float for a row, not one for each column.
 * ignores_zeros: a gradient of zeros changes nothing.
 */
int mx_rec_optimizers(unsigned char** result, size_t* result_size);

/* question: {"op": s, "inputs": [SHAPE, ...], "lists": {s: n, ...}}: the shapes of all tensors that
 * go in, and by number attribute how many of these its lists have. *result is [SHAPE, ...], one for
 * each tensor that comes out. SHAPE is null, or a list of sizes, of which those that are not known are null.
 * The error names the input whose shape contradicts the op's definition.
 */
int mx_rec_infer_shapes(const unsigned char* question, size_t question_size,
                        unsigned char** result, size_t* result_size);

/* config: the configuration of a table, as the op MxRecTable takes it. *result is empty if a table
 * can be made by it, or says how rows on disk are read if the table has some; the error names the
 * table, the setting and its value.
 */
int mx_rec_check_table(const unsigned char* config, size_t config_size, unsigned char** result,
                       size_t* result_size);

/* {NAME: {"rows": n, "bytes": n}, ...}: for each name of tables that sessions of this process have
 * made, the most rows and bytes of memory (rows, slots, index, history) that one of them holds now
 * or held when its session ended. Without parts of tables on parameter servers.
 */
int mx_rec_tables(unsigned char** result, size_t* result_size);

/* Decides which lookups and updates of a graph are fused and share ops, and which lookups move into
 * its input pipelines. Needs no TensorFlow.
 *
 * graph: a serialized GraphDef. ops: a serialized OpList of the op types that the caller knows;
 * only their names and is_stateful are read. Both may be null if their size is 0. moves: 0 if
 * nothing is to move: the plan then has no lookups and no iterators. shape: null, or
 * is asked for static shapes that the rules need, on the calling thread: for an output of a node,
 * whose name does not end with a zero byte, it writes the size of each dimension, -1 for an unknown
 * one, and returns how many there are; a negative number if that is not known or above 16. Without
 * it shapes are those of the attribute _output_shapes.
 *
 * Returns 0, and *result is the plan: 8 bytes, the length n of the JSON, little-endian; n bytes of
 * JSON, UTF-8; the GraphDefs that the JSON points into. Returns 1, and *result is the text of an
 * error, UTF-8; it does not end with a zero byte. In both cases *result has *result_size bytes and
 * goes back to mx_rec_free. Never aborts.
 */
int mx_rec_plan(const unsigned char* graph, size_t graph_size, const unsigned char* ops,
                size_t ops_size, int moves,
                int (*shape)(void* context, const unsigned char* node, size_t node_size,
                             uint64_t output, int64_t sizes[16]),
                void* context, unsigned char** result, size_t* result_size);

/* Begins to record the runs of our ops, those in input pipelines included; TensorFlow's RunMetadata lacks these. What was
 * recorded before and not fetched is dropped. Off until the first call; while it is off, an op run
 * pays one load for it.
 */
void mx_rec_trace_start(void);

/* Ends the recording. Needs no TensorFlow.
 *
 * Returns 0, and *result is JSON, UTF-8: {"version": 1, "dropped": n, "spans": [{"op":
 * "MxRecPrepare", "table": "users" or null, "thread": 1, "start": microseconds since the Unix epoch
 * as in RunMetadata, "duration": microseconds}, ...]}, in the order in which the runs ended.
 * Threads have numbers from 1. At most 262,144 spans are kept; dropped says how many more there
 * were. Returns 1, and *result is the text of an error, UTF-8. In both cases it does not end with a
 * zero byte, has *result_size bytes and goes back to mx_rec_free. Never aborts.
 */
int mx_rec_trace_stop(unsigned char** result, size_t* result_size);

/* Look at the directory of one saved table, without a table in memory. None needs TensorFlow.
 *
 * path, here, there: bytes of a path, without a zero byte. progress: is told the bytes done and the
 * bytes in all, at least once a MiB, on the calling thread, and returns 0 to stop the work, which
 * then returns 1; may be null.
 *
 * Each returns 0, and *result is JSON, UTF-8; or 1, and *result is the text of an error, UTF-8,
 * that names the file. In both cases it does not end with a zero byte, has *result_size bytes and
 * goes back to mx_rec_free. None aborts.
 */
typedef int (*mx_rec_progress)(uint64_t done, uint64_t total, void* context);

/* {"version": 0 (the original's), 1, 2 or 3, "rows": n or null, "removed": n keys that a delta
 * takes out, or null, "dim": n or null, "slots": [{"name": s, "initial": x or null}], "parts":
 * [{"name": "key", "bytes": n}, ...], "bytes": n of all files, "history": HISTORY or null,
 * "config": {...} or null, "faults": FAULTS}. Reads no data file: faults are those of manifest,
 * attribute files, thresholds and sizes. HISTORY is {"keys": n, "access": n, "configured_access": n
 * or null, "eviction": seconds or null, "counting": b, "latest": seconds since 1970}. FAULTS is
 * [{"file": path below the directory, "message": s}, ...].
 */
int mx_rec_checkpoint_describe(const unsigned char* path, size_t path_size, unsigned char** result, size_t* result_size);

/* {"version": n, "rows": n or null, "files": n that were read, "bytes": n of them, "checksums": n of files whose checksum was
 * compared, "faults": FAULTS}: all of them. Needs 8 bytes a key, with a row or in the history, and
 * a few MiB.
 */
int mx_rec_checkpoint_verify(const unsigned char* path, size_t path_size, mx_rec_progress progress, void* context,
                             unsigned char** result, size_t* result_size);

/* null if the key has no row and nothing is known of it, else {"position": n, "parts": [{"name": "embedding" or a slot, "values":
 * [x, ...]}, ...], "seen": {"count": n, "last": seconds since 1970} or null}. Without a row the
 * position is null and there are no parts. What is not finite is "NaN", "Infinity" or "-Infinity".
 */
int mx_rec_checkpoint_row(const unsigned char* path, size_t path_size, int64_t key, mx_rec_progress progress,
                          void* context, unsigned char** result, size_t* result_size);

/* {"equal": b, "rows": [n, n], "dims": [n, n], "only_here": KEYS, "only_there": KEYS, "differing": KEYS, "parts": [{"name": s,
 * "rows": n that differ in a bit, "largest": largest absolute difference or null if that is not
 * finite, "key": where, or null}], "parts_only_here": [s], "parts_only_there": [s], "history": null
 * if neither has one, else {"here": HISTORY or null, "there": HISTORY or null, "only_here": KEYS,
 * "only_there": KEYS, "differing": KEYS}}. KEYS is {"count": n, "first": [the ten smallest]}. Rows
 * are matched by key. Needs 16 bytes for each key of the second table and at most 32 MiB; or 16
 * bytes for each key of both histories, if that is more.
 */
int mx_rec_checkpoint_diff(const unsigned char* here, size_t here_size, const unsigned char* there, size_t there_size,
                           mx_rec_progress progress, void* context, unsigned char** result, size_t* result_size);

/* Load several tables of this process together: all files are read and checked first, then all contents are replaced.
 *
 * Each returns 0, and *result is JSON, UTF-8; or 1, and *result is the text of an error, UTF-8. In
 * both cases it does not end with a zero byte, has *result_size bytes and goes back to mx_rec_free.
 * None aborts.
 */

/* Reads every file of every table once and checks it; no table changes. handles: one for each table. paths: for each table the
 * directory of a whole save and those of its deltas, with a zero byte between two paths and two
 * between two tables.
 *
 * {"group": n, "rows": [n, ...]}: all is well, and the contents wait for publish or discard.
 * {"group": null}: a handle is of no table of this copy of the library. {"kind": s, "message": s}:
 * a table cannot be loaded, and nothing waits; the kind is InvalidArgument, NotFound,
 * ResourceExhausted, DataLoss, Io or Internal.
 */
int mx_rec_checkpoint_stage(const int64_t* handles, size_t tables, const unsigned char* paths, size_t paths_size,
                            unsigned char** result, size_t* result_size);

/* Replaces the contents of all tables of a group. [{"rows": n, "epoch": n}, ...] in the order of the handles. Of two groups that are
 * published at once, all tables end with the contents of one.
 */
int mx_rec_checkpoint_publish(uint64_t group, unsigned char** result, size_t* result_size);

/* Forgets a group, if it waits; null. */
int mx_rec_checkpoint_discard(uint64_t group, unsigned char** result, size_t* result_size);

/* Put the tables of a whole checkpoint into place together (docs/checkpoint-format.md). None needs
 * TensorFlow.
 *
 * directory: bytes of the absolute path <dir>/sparse-<base>-<step>, or delta-sparse-..., without a
 * zero byte. before: is told of each step on the disk before it is taken, on the calling thread:
 * its name, which is "make", "write", "flush", "link", "copy", "rename", "exchange" or "remove" and
 * ends with a zero byte, and the path, which does not. It returns 0, or an errno: the step is then
 * not taken and ends with that error. It may be null, and may end the process.
 *
 * Each returns 0, and *result is JSON, UTF-8: {"notes": NOTES, "value": ...}, or {"notes": NOTES,
 * "error": ERROR}; or 1, and *result is the text of a defect, UTF-8. In both cases it does not end
 * with a zero byte, has *result_size bytes and goes back to mx_rec_free. None aborts. NOTES is
 * [["info" or "warning", s], ...], for people. ERROR is {"errno": n, "paths": [one or two]} of a
 * step that the system refused, else {"kind": s, "message": s}: the kind is NoDirectory if
 * something else stands where the tables go, or one of those of mx_rec_checkpoint_stage. What is no
 * UTF-8 in a path is replaced.
 */
typedef int (*mx_rec_before)(const char* step, const unsigned char* path, size_t path_size,
                             void* context);

/* Makes <dir>, puts back what saves of dead processes had replaced, and removes what they left, with
 * tables whose variables are gone, unless deltas follow them; null.
 */
int mx_rec_commit_clean(const unsigned char* directory, size_t directory_size, mx_rec_before before,
                        void* context, unsigned char** result, size_t* result_size);

/* Makes the hidden directory into which the tables are to be saved. {"commit": n, "staging": its
 * name, in <dir>}.
 */
int mx_rec_commit_begin(const unsigned char* directory, size_t directory_size, mx_rec_before before,
                        void* context, unsigned char** result, size_t* result_size);

/* Checks the tables, writes the manifest, flushes both and renames the hidden directory; null.
 * content: a JSON object with at least "tables", a list of objects with a "name"; "dense": true
 * says that variables are saved after it, and what is there of them is kept. After an error the
 * commit waits for its undo.
 */
int mx_rec_commit_place(uint64_t commit, const unsigned char* content, size_t content_size,
                        mx_rec_before before, void* context, unsigned char** result,
                        size_t* result_size);

/* Removes what a commit replaced, and ends it; null. */
int mx_rec_commit_finish(uint64_t commit, mx_rec_before before, void* context,
                         unsigned char** result, size_t* result_size);

/* Puts back what a commit replaced, and ends it; null. After an error it may be tried again. */
int mx_rec_commit_undo(uint64_t commit, mx_rec_before before, void* context, unsigned char** result,
                       size_t* result_size);

/* Puts back what saves of dead processes over these tables had replaced; null. */
int mx_rec_commit_recover(const unsigned char* directory, size_t directory_size,
                          mx_rec_before before, void* context, unsigned char** result,
                          size_t* result_size);

/* Removes a directory of tables, if it is there; null. */
int mx_rec_commit_discard(const unsigned char* directory, size_t directory_size,
                          mx_rec_before before, void* context, unsigned char** result,
                          size_t* result_size);

/* Flushes the files of the variables of the checkpoint <dir>/<base>-<step>, and <dir>; null. */
int mx_rec_commit_flush(const unsigned char* checkpoint, size_t checkpoint_size,
                        mx_rec_before before, void* context, unsigned char** result,
                        size_t* result_size);

/* The text of the manifest of tables that lie in a directory of any name, without writing it.
 * content: as of mx_rec_commit_place.
 */
int mx_rec_commit_manifest(const unsigned char* directory, size_t directory_size,
                           const unsigned char* content, size_t content_size, mx_rec_before before,
                           void* context, unsigned char** result, size_t* result_size);

#ifdef __cplusplus
}
#endif

#endif /* MX_REC_H_ */
