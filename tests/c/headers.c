/* Compiled, never run: our declarations beside TensorFlow's own. A declaration that conflicts is an error. */
#include <stdbool.h>
#include <stddef.h>

#include "tensorflow/c/c_api.h"

/* Ours comes before ops.h, which leaves out the typedefs that C (not C++) needs. */
#define MX_REC_WITH_TENSORFLOW_HEADERS
#include "tf_c_abi.h"

#include "tensorflow/c/kernels.h"
#include "tensorflow/c/ops.h"

/* The numbers that tf_c_abi.h repeats; tests/c_abi.rs passes ours in. */
_Static_assert(TF_FLOAT == MX_REC_FLOAT, "TF_FLOAT");
_Static_assert(TF_INT32 == MX_REC_INT32, "TF_INT32");
_Static_assert(TF_UINT8 == MX_REC_UINT8, "TF_UINT8");
_Static_assert(TF_INT64 == MX_REC_INT64, "TF_INT64");
_Static_assert(TF_OK == MX_REC_OK_CODE, "TF_OK");
_Static_assert(TF_UNKNOWN == MX_REC_UNKNOWN, "TF_UNKNOWN");
_Static_assert(TF_INVALID_ARGUMENT == MX_REC_INVALID_ARGUMENT, "TF_INVALID_ARGUMENT");
_Static_assert(TF_NOT_FOUND == MX_REC_NOT_FOUND, "TF_NOT_FOUND");
_Static_assert(TF_RESOURCE_EXHAUSTED == MX_REC_RESOURCE_EXHAUSTED, "TF_RESOURCE_EXHAUSTED");
_Static_assert(TF_ABORTED == MX_REC_ABORTED, "TF_ABORTED");
_Static_assert(TF_INTERNAL == MX_REC_INTERNAL, "TF_INTERNAL");
_Static_assert(TF_DATA_LOSS == MX_REC_DATA_LOSS, "TF_DATA_LOSS");

/* The one struct whose inside we read. */
_Static_assert(offsetof(TF_Buffer, data) == 0, "TF_Buffer.data");
_Static_assert(offsetof(TF_Buffer, length) == sizeof(void*), "TF_Buffer.length");
