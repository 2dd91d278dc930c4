//! Registering an op and its kernel: the callbacks that TensorFlow calls.

use super::shape::ShapeContext;
use super::{status, Construction, Context, Status};
use crate::guard::{explain, guarded};
use crate::op_def::OpDef;
use crate::shapes;
use crate::sys::{self, TensorFlow};
use crate::trace;
use mx_rec_kernels::{Error, Kind, Result};
use std::ffi::{c_void, CString};
use std::sync::OnceLock;

/// An op: its definition, and the state of one of its nodes in one session.
pub(crate) trait OpKernel: Send + Sync + Sized + 'static {
    /// Names, types, shapes and documentation.
    const DEF: &'static OpDef;

    /// Makes the state of a node.
    fn create(construction: &Construction) -> Result<Self>;

    /// Runs the node. Outputs are set last; after an error none is.
    fn compute(&self, context: &Context) -> Result<()>;
}

/// What is done with the number of a step in which an op has failed.
static AT_FAILURE: OnceLock<fn(i64)> = OnceLock::new();

/// Has `act` called with the number of each step in which an op fails, before TensorFlow knows of
/// the failure. Only the first call counts.
pub(crate) fn at_failure(act: fn(i64)) {
    let _ = AT_FAILURE.set(act);
}

/// Registers op and CPU kernel `K`.
///
/// # Errors
/// TensorFlow's message.
pub(crate) fn register<K: OpKernel>(api: &'static TensorFlow) -> Result<(), String> {
    let def = K::DEF;
    let text = |text: &str| CString::new(text).map_err(|error| error.to_string());
    let name = text(def.name)?;
    let status = Status::new(api);
    // SAFETY: all texts end with a zero and are copied; registering takes over the builder.
    unsafe {
        let builder = api.TF_NewOpDefinitionBuilder(name.as_ptr());
        for attr in def.attrs {
            api.TF_OpDefinitionBuilderAddAttr(builder, text(attr.spec)?.as_ptr());
        }
        for input in def.inputs {
            api.TF_OpDefinitionBuilderAddInput(builder, text(input.spec)?.as_ptr());
        }
        for output in def.outputs {
            api.TF_OpDefinitionBuilderAddOutput(builder, text(output.spec)?.as_ptr());
        }
        if def.stateful {
            // TensorFlow 1.15 does not look at the second argument.
            api.TF_OpDefinitionBuilderSetIsStateful(builder, true);
        }
        api.TF_OpDefinitionBuilderSetShapeInferenceFunction(builder, Some(shape::<K>));
        api.TF_RegisterOpDefinition(builder, status.raw());
    }
    status
        .check()
        .map_err(|error| format!("{}: {error}", def.name))?;
    let device = text("CPU")?;
    // SAFETY: the texts are copied, the callbacks live as long as the library, which TensorFlow
    // never unloads; registering takes over the builder.
    unsafe {
        let builder = api.TF_NewKernelBuilder(
            name.as_ptr(),
            device.as_ptr(),
            Some(create::<K>),
            Some(compute::<K>),
            Some(delete::<K>),
        );
        api.TF_RegisterKernelBuilder(name.as_ptr(), builder, status.raw());
    }
    status
        .check()
        .map_err(|error| format!("{}: {error}", def.name))
}

/// Whether TensorFlow has a kernel for the op `name` already.
///
/// # Errors
/// TensorFlow's message.
pub(crate) fn has_kernel(api: &'static TensorFlow, name: &str) -> Result<bool, String> {
    let name = CString::new(name).map_err(|error| error.to_string())?;
    let status = Status::new(api);
    // SAFETY: the name ends with a zero and is copied; the buffer is null or ours, read while it
    // lives and deleted once.
    let bytes = unsafe {
        let buffer = api.TF_GetRegisteredKernelsForOp(name.as_ptr(), status.raw());
        let bytes = buffer.as_ref().map_or(0, |buffer| buffer.length);
        if !buffer.is_null() {
            api.TF_DeleteBuffer(buffer);
        }
        bytes
    };
    status.check().map_err(|error| error.to_string())?;
    // The list is a protocol buffer: no byte, no kernel.
    Ok(bytes > 0)
}

unsafe extern "C" fn shape<K: OpKernel>(
    raw: *mut sys::TF_ShapeInferenceContext,
    raw_status: *mut sys::TF_Status,
) {
    let Some(api) = sys::loaded() else { return };
    // SAFETY: TensorFlow passed this context to this callback.
    let context = unsafe { ShapeContext::new(api, raw) };
    if let Err(error) = guarded(|| {
        context.set_unknown()?;
        let inputs = context.inputs();
        for (at, shape) in shapes::infer_counted(K::DEF, &inputs)?.iter().enumerate() {
            context.set(at, shape)?;
        }
        Ok(())
    }) {
        status::set(api, raw_status, error.kind(), &explain(K::DEF.name, &error));
    }
}

unsafe extern "C" fn create<K: OpKernel>(raw: *mut sys::TF_OpKernelConstruction) -> *mut c_void {
    let Some(api) = sys::loaded() else {
        return std::ptr::null_mut();
    };
    // SAFETY: TensorFlow passed this construction to this callback.
    let construction = unsafe { Construction::new(api, raw) };
    match guarded(|| K::create(&construction)) {
        Ok(kernel) => Box::into_raw(Box::new(kernel)).cast(),
        Err(error) => {
            construction.fail(error.kind(), &explain(K::DEF.name, &error));
            std::ptr::null_mut()
        }
    }
}

unsafe extern "C" fn compute<K: OpKernel>(kernel: *mut c_void, raw: *mut sys::TF_OpKernelContext) {
    let Some(api) = sys::loaded() else { return };
    // SAFETY: TensorFlow passed this context to this callback.
    let context = unsafe { Context::new(api, raw, K::DEF.inputs) };
    // SAFETY: the pointer is null or what `create::<K>` gave, and `delete::<K>` has not been
    // called. TensorFlow may run a kernel on several threads at once: K is Sync and only shared
    // references are made.
    let kernel = unsafe { kernel.cast::<K>().as_ref() };
    if let Err(error) = guarded(|| {
        let _span = trace::span(K::DEF.name);
        match kernel {
            Some(kernel) => kernel.compute(&context),
            None => Err(Error::new(
                Kind::Internal,
                "the op runs, but its kernel could not be made",
            )),
        }
    }) {
        if let Some(act) = AT_FAILURE.get() {
            let _ = guarded(|| {
                act(context.step());
                Ok(())
            });
        }
        context.fail(error.kind(), &explain(K::DEF.name, &error));
    }
}

unsafe extern "C" fn delete<K: OpKernel>(kernel: *mut c_void) {
    if kernel.is_null() {
        return;
    }
    // SAFETY: made by `create::<K>`, deleted once, no longer running.
    let kernel = unsafe { Box::from_raw(kernel.cast::<K>()) };
    let _ = guarded(|| {
        drop(kernel);
        Ok(())
    });
}
