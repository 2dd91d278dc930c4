/* The part of TensorFlow's C ABI that the plugin uses.
 *
 * Every declaration holds for TensorFlow 1.15 and for 2.x alike; what differs between them is left out
 * (TF_AllocateOutput, for one, changed its signature). The Rust bindings are generated from this file, and a test
 * compiles it together with TensorFlow's own headers, so that a declaration that conflicts is an error.
 */
#ifndef MX_REC_TF_C_ABI_H_
#define MX_REC_TF_C_ABI_H_

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#ifndef MX_REC_WITH_TENSORFLOW_HEADERS
/* Numbers of TF_DataType and TF_Code that we use. */
typedef enum TF_DataType { TF_FLOAT = 1, TF_INT32 = 3, TF_UINT8 = 4, TF_INT64 = 9 } TF_DataType;

typedef enum TF_Code {
  TF_OK = 0,
  TF_UNKNOWN = 2,
  TF_INVALID_ARGUMENT = 3,
  TF_NOT_FOUND = 5,
  TF_RESOURCE_EXHAUSTED = 8,
  TF_ABORTED = 10,
  TF_INTERNAL = 13,
  TF_DATA_LOSS = 15
} TF_Code;

/* Opaque; newer headers make it another name of TSL_Status. */
typedef struct TF_Status TF_Status;

/* Bytes; free them with TF_DeleteBuffer. */
typedef struct TF_Buffer {
  const void* data;
  size_t length;
  void (*data_deallocator)(void* data, size_t length);
} TF_Buffer;
#endif

typedef struct TF_Tensor TF_Tensor;
typedef struct TF_OpDefinitionBuilder TF_OpDefinitionBuilder;
typedef struct TF_ShapeInferenceContext TF_ShapeInferenceContext;
typedef struct TF_ShapeHandle TF_ShapeHandle;
typedef struct TF_DimensionHandle TF_DimensionHandle;
typedef struct TF_KernelBuilder TF_KernelBuilder;
typedef struct TF_OpKernelConstruction TF_OpKernelConstruction;
typedef struct TF_OpKernelContext TF_OpKernelContext;

extern const char* TF_Version(void);

/* Status */
extern TF_Status* TF_NewStatus(void);
extern void TF_DeleteStatus(TF_Status*);
extern void TF_SetStatus(TF_Status* s, TF_Code code, const char* msg);
extern TF_Code TF_GetCode(const TF_Status* s);
extern const char* TF_Message(const TF_Status* s);

/* Tensors */
extern TF_Tensor* TF_NewTensor(TF_DataType, const int64_t* dims, int num_dims, void* data,
                               size_t len, void (*deallocator)(void* data, size_t len, void* arg),
                               void* deallocator_arg);
extern TF_Tensor* TF_AllocateTensor(TF_DataType, const int64_t* dims, int num_dims, size_t len);
extern void TF_DeleteTensor(TF_Tensor*);
extern TF_DataType TF_TensorType(const TF_Tensor*);
extern int TF_NumDims(const TF_Tensor*);
extern int64_t TF_Dim(const TF_Tensor* tensor, int dim_index);
extern size_t TF_TensorByteSize(const TF_Tensor*);
extern void* TF_TensorData(const TF_Tensor*);

/* Definitions of ops */
extern TF_OpDefinitionBuilder* TF_NewOpDefinitionBuilder(const char* op_name);
extern void TF_RegisterOpDefinition(TF_OpDefinitionBuilder* builder, TF_Status* status);
extern void TF_OpDefinitionBuilderAddAttr(TF_OpDefinitionBuilder* builder, const char* attr_spec);
extern void TF_OpDefinitionBuilderAddInput(TF_OpDefinitionBuilder* builder,
                                           const char* input_spec);
extern void TF_OpDefinitionBuilderAddOutput(TF_OpDefinitionBuilder* builder,
                                            const char* output_spec);
extern void TF_OpDefinitionBuilderSetIsStateful(TF_OpDefinitionBuilder* builder, bool is_stateful);
extern void TF_OpDefinitionBuilderSetShapeInferenceFunction(
    TF_OpDefinitionBuilder* builder,
    void (*shape_inference_func)(TF_ShapeInferenceContext* ctx, TF_Status* status));

/* Shape inference */
extern TF_ShapeHandle* TF_NewShapeHandle(void);
extern void TF_DeleteShapeHandle(TF_ShapeHandle* handle);
extern TF_DimensionHandle* TF_NewDimensionHandle(void);
extern void TF_DeleteDimensionHandle(TF_DimensionHandle* handle);
extern int64_t TF_ShapeInferenceContextNumInputs(TF_ShapeInferenceContext* ctx);
extern void TF_ShapeInferenceContextGetInput(TF_ShapeInferenceContext* ctx, int i,
                                             TF_ShapeHandle* handle, TF_Status* status);
extern void TF_ShapeInferenceContextSetOutput(TF_ShapeInferenceContext* ctx, int i,
                                              TF_ShapeHandle* handle, TF_Status* status);
extern void TF_ShapeInferenceContextSetUnknownShape(TF_ShapeInferenceContext* ctx,
                                                    TF_Status* status);
extern TF_ShapeHandle* TF_ShapeInferenceContextVectorFromSize(TF_ShapeInferenceContext* ctx,
                                                              size_t size);
extern int64_t TF_ShapeInferenceContextRank(TF_ShapeInferenceContext* ctx, TF_ShapeHandle* handle);
extern int TF_ShapeInferenceContextRankKnown(TF_ShapeInferenceContext* ctx,
                                             TF_ShapeHandle* handle);
extern void TF_ShapeInferenceContextDim(TF_ShapeInferenceContext* ctx,
                                        TF_ShapeHandle* shape_handle, int64_t i,
                                        TF_DimensionHandle* result);
extern int TF_DimensionHandleValueKnown(TF_DimensionHandle* dim_handle);
extern int64_t TF_DimensionHandleValue(TF_DimensionHandle* dim_handle);
extern void TF_ShapeInferenceContextSubshape(TF_ShapeInferenceContext* ctx,
                                             TF_ShapeHandle* shape_handle, int64_t start,
                                             int64_t end, TF_ShapeHandle* result,
                                             TF_Status* status);
extern void TF_ShapeInferenceContextConcatenateShapes(TF_ShapeInferenceContext* ctx,
                                                      TF_ShapeHandle* first,
                                                      TF_ShapeHandle* second,
                                                      TF_ShapeHandle* result, TF_Status* status);

/* Kernels */
extern TF_KernelBuilder* TF_NewKernelBuilder(const char* op_name, const char* device_name,
                                             void* (*create_func)(TF_OpKernelConstruction*),
                                             void (*compute_func)(void*, TF_OpKernelContext*),
                                             void (*delete_func)(void*));
extern void TF_RegisterKernelBuilder(const char* kernel_name, TF_KernelBuilder* builder,
                                     TF_Status* status);
extern TF_Buffer* TF_GetRegisteredKernelsForOp(const char* name, TF_Status* status);
extern void TF_DeleteBuffer(TF_Buffer*);
extern void TF_OpKernelConstruction_GetAttrInt32(TF_OpKernelConstruction* ctx,
                                                 const char* attr_name, int32_t* val,
                                                 TF_Status* status);
extern void TF_OpKernelConstruction_Failure(TF_OpKernelConstruction* ctx, TF_Status* status);
extern void TF_GetInput(TF_OpKernelContext* ctx, int i, TF_Tensor** tensor, TF_Status* status);
extern void TF_SetOutput(TF_OpKernelContext* ctx, int i, const TF_Tensor* tensor,
                         TF_Status* status);
extern void TF_OpKernelContext_Failure(TF_OpKernelContext* ctx, TF_Status* status);
extern int64_t TF_StepId(TF_OpKernelContext* ctx);

#ifdef __cplusplus
}
#endif

#endif  /* MX_REC_TF_C_ABI_H_ */
