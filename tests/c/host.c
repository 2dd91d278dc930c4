/* A process without TensorFlow that opens the library: it must say so and do no harm. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "mx_rec.h"

static int fail(const char* what) {
  fprintf(stderr, "%s\n", what);
  return 1;
}

typedef int (*SHAPE)(void*, const unsigned char*, size_t, uint64_t, int64_t*);

/* The graph pass works without TensorFlow: an empty graph has a plan, bytes that are no graph have an error. */
static const char* plans(void* library) {
  int (*plan)(const unsigned char*, size_t, const unsigned char*, size_t, int, SHAPE, void*, unsigned char**, size_t*) =
      (int (*)(const unsigned char*, size_t, const unsigned char*, size_t, int, SHAPE, void*, unsigned char**, size_t*))dlsym(
          library, "mx_rec_plan");
  void (*release)(unsigned char*, size_t) = (void (*)(unsigned char*, size_t))dlsym(library, "mx_rec_free");
  if (plan == NULL || release == NULL) return "a function of the graph pass is missing";
  unsigned char* result = NULL;
  size_t size = 0;
  if (plan(NULL, 0, NULL, 0, 1, NULL, NULL, &result, &size) != 0)
    return "an empty graph has no plan";
  const char* json = "{\"version\":1,\"nodes\":0,\"lookups\":[],\"iterators\":[],\"sums\":[],\"concats\":[],\"updates\":[],\"together\":[],\"requests\":[],\"left_out\":[]}";
  if (size != 8 + strlen(json) || result[0] != strlen(json)) return "the plan has another size";
  if (memcmp(result + 8, json, strlen(json)) != 0) return "the plan has another text";
  release(result, size);
  const unsigned char bad[2] = {0x0a, 0x7f};
  if (plan(bad, sizeof bad, NULL, 0, 1, NULL, NULL, &result, &size) != 1) return "bytes that are no graph have a plan";
  const char* error = "the bytes are no GraphDef: ";
  if (size < strlen(error) || memcmp(result, error, strlen(error)) != 0) return "the error does not say what is wrong";
  release(result, size);
  if (plan(bad, sizeof bad, NULL, 0, 1, NULL, NULL, NULL, NULL) != 1) return "a place for the result is needed";
  release(NULL, 0);
  return NULL;
}

/* Ops and tables are defined without TensorFlow. */
static const char* definitions(void* library) {
  int (*ops)(unsigned char**, size_t*) = (int (*)(unsigned char**, size_t*))dlsym(library, "mx_rec_op_definitions");
  int (*infer)(const unsigned char*, size_t, unsigned char**, size_t*) =
      (int (*)(const unsigned char*, size_t, unsigned char**, size_t*))dlsym(library, "mx_rec_infer_shapes");
  int (*check)(const unsigned char*, size_t, unsigned char**, size_t*) =
      (int (*)(const unsigned char*, size_t, unsigned char**, size_t*))dlsym(library, "mx_rec_check_table");
  void (*release)(unsigned char*, size_t) = (void (*)(unsigned char*, size_t))dlsym(library, "mx_rec_free");
  if (!ops || !infer || !check || !release) return "a function for definitions is missing";
  unsigned char* result = NULL;
  size_t size = 0;
  const char* first = "[{\"name\":\"MxRecTable\",";
  if (ops(&result, &size) != 0 || size < strlen(first)) return "there are no definitions";
  if (memcmp(result, first, strlen(first)) != 0) return "the definitions have another text";
  release(result, size);
  const char* question = "{\"op\":\"MxRecRead\",\"inputs\":[[],[0,4],[null]],"
                         "\"lists\":{\"N\":1,\"M\":1}}";
  const char* shapes = "[[null,4]]";
  if (infer((const unsigned char*)question, strlen(question), &result, &size) != 0) return "no shape is inferred";
  if (size != strlen(shapes) || memcmp(result, shapes, size) != 0) return "another shape is inferred";
  release(result, size);
  const char* wrong[] = {"{\"op\":\"MxRecNone\",\"inputs\":[],\"lists\":{}}", "{}", "", "\xff",
                         "{\"op\":\"MxRecRead\",\"inputs\":[[1],null,null],"
                         "\"lists\":{\"N\":1,\"M\":1}}",
                         "{\"op\":\"MxRecPrepare\",\"inputs\":[],"
                         "\"lists\":{\"N\":18446744073709551615}}"};
  for (size_t at = 0; at < sizeof wrong / sizeof wrong[0]; ++at) {
    if (infer((const unsigned char*)wrong[at], strlen(wrong[at]), &result, &size) != 1) return "a wrong question is answered";
    if (size == 0) return "a wrong question has no error";
    release(result, size);
    if (check((const unsigned char*)wrong[at], strlen(wrong[at]), &result, &size) != 1) return "a wrong table is good";
    release(result, size);
  }
  const char* table =
      "{\"name\":\"t\",\"dim\":4,\"capacity\":1,\"seed\":0,\"init_param\":1,\"padding_keys\":[],"
      "\"initializer\":{\"kind\":\"zeros\"}}";
  if (check((const unsigned char*)table, strlen(table), &result, &size) != 0 || size != 0) return "a good table is wrong";
  release(result, size);
  if (check(NULL, 0, NULL, NULL) != 1) return "a place for the error is needed";
  return NULL;
}

/* The recorder works without TensorFlow: no op has run, so that there is nothing to tell. */
static const char* traces(void* library) {
  void (*start)(void) = (void (*)(void))dlsym(library, "mx_rec_trace_start");
  int (*stop)(unsigned char**, size_t*) = (int (*)(unsigned char**, size_t*))dlsym(library, "mx_rec_trace_stop");
  void (*release)(unsigned char*, size_t) = (void (*)(unsigned char*, size_t))dlsym(library, "mx_rec_free");
  if (start == NULL || stop == NULL || release == NULL) return "a function of the recorder is missing";
  const char* json = "{\"version\":1,\"dropped\":0,\"spans\":[]}";
  unsigned char* result = NULL;
  size_t size = 0;
  start();
  if (stop(NULL, NULL) != 1) return "a place for the recording is needed";
  for (int turn = 0; turn < 2; ++turn) { /* the second time it is off */
    if (stop(&result, &size) != 0) return "there is no recording";
    if (size != strlen(json) || memcmp(result, json, size) != 0) return "the recording has another text";
    release(result, size);
  }
  release(NULL, 0);
  return NULL;
}

static int stop(uint64_t done, uint64_t total, void* context) {
  * (int*)context += done <= total;
  return 0;
}

/* Saved tables can be looked at without TensorFlow: here is none, and the errors say so. */
static const char* checkpoints(void* library) {
  int (*describe)(const unsigned char*, size_t, unsigned char**, size_t*) =
      (int (*)(const unsigned char*, size_t, unsigned char**, size_t*))dlsym(library, "mx_rec_checkpoint_describe");
  int (*verify)(const unsigned char*, size_t, mx_rec_progress, void*, unsigned char**, size_t*) =
      (int (*)(const unsigned char*, size_t, mx_rec_progress, void*, unsigned char**, size_t*))dlsym(
          library, "mx_rec_checkpoint_verify");
  int (*row)(const unsigned char*, size_t, int64_t, mx_rec_progress, void*, unsigned char**, size_t*) =
      (int (*)(const unsigned char*, size_t, int64_t, mx_rec_progress, void*, unsigned char**, size_t*))dlsym(
          library, "mx_rec_checkpoint_row");
  int (*diff)(const unsigned char*, size_t, const unsigned char*, size_t, mx_rec_progress, void*, unsigned char**,
              size_t*) =
      (int (*)(const unsigned char*, size_t, const unsigned char*, size_t, mx_rec_progress, void*, unsigned char**,
               size_t*))dlsym(library, "mx_rec_checkpoint_diff");
  void (*release)(unsigned char*, size_t) = (void (*)(unsigned char*, size_t))dlsym(library, "mx_rec_free");
  if (!describe || !verify || !row || !diff || !release) return "a function for checkpoints is missing";
  const unsigned char path[] = "no such directory";
  const char* error = "cannot find the checkpoint (path=no such directory";
  int told = 0;
  for (int one = 0; one < 4; ++one) {
    unsigned char* result = NULL;
    size_t size = 0;
    int status = one == 0   ? describe(path, sizeof path - 1, &result, &size)
                 : one == 1 ? verify(path, sizeof path - 1, stop, &told, &result, &size)
                 : one == 2 ? row(path, sizeof path - 1, 7, NULL, NULL, &result, &size)
                            : diff(path, sizeof path - 1, path, sizeof path - 1, stop, &told, &result, &size);
    if (status != 1) return "a directory that does not exist has a table";
    if (size < strlen(error) || memcmp(result, error, strlen(error)) != 0) return "the error does not name the path";
    release(result, size);
  }
  if (told != 0) return "nothing was read, but there was progress";
  if (describe(path, sizeof path - 1, NULL, NULL) != 1) return "a place for the description is needed";
  release(NULL, 0);
  return NULL;
}

int main(int argc, char** argv) {
  if (argc != 3) return fail("usage: host LIBRARY VERSION");
  for (int round = 0; round < 2; ++round) {
    void* library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
    if (library == NULL) return fail(dlerror());
    const char* (*version)(void) = (const char* (*)(void))dlsym(library, "mx_rec_version");
    int (*status)(void) = (int (*)(void))dlsym(library, "mx_rec_load_status");
    const char* (*message)(void) = (const char* (*)(void))dlsym(library, "mx_rec_load_message");
    if (version == NULL || status == NULL || message == NULL) return fail("a function is missing");
    if (strcmp(version(), argv[2]) != 0) return fail("the version is not the package's");
    if (status() != MX_REC_NO_TENSORFLOW) return fail("the status is not 'no TensorFlow'");
    if (strstr(message(), "import tensorflow") == NULL) return fail("the message does not say what to do");
    const char* wrong = plans(library);
    if (wrong == NULL) wrong = definitions(library);
    if (wrong == NULL) wrong = traces(library);
    if (wrong == NULL) wrong = checkpoints(library);
    if (wrong != NULL) return fail(wrong);
  }
  puts("host: ok");
  return 0;
}
