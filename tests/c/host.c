/* A process without TensorFlow that opens the library: it must say so and do no harm. */
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "mx_rec.h"

static int fail(const char* what) {
  fprintf(stderr, "%s\n", what);
  return 1;
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
  }
  puts("host: ok");
  return 0;
}
