//! The functions of the driver that are called directly.
//!
//! `cust` holds contexts, modules, streams and events. It declares result codes as an enumeration of CUDA 11.4,
//! and a newer driver may answer with a number that is not in it; so what is called while the device works, and
//! may therefore report anything, is declared here with plain numbers, as is what `cust` does not know. The
//! symbols are those of [`crate::trampoline`].

use std::ffi::{c_char, c_int, c_uint, c_void};

pub(crate) use cust::sys::{CUcontext, CUevent, CUfunction, CUgraph, CUgraphExec, CUmodule, CUstream};

/// `CUDA_SUCCESS`.
pub(crate) const SUCCESS: u32 = 0;
/// `CUDA_ERROR_OUT_OF_MEMORY`.
pub(crate) const OUT_OF_MEMORY: u32 = 2;
/// `CUDA_ERROR_NOT_FOUND`.
pub(crate) const NOT_FOUND: u32 = 500;
/// `CUDA_ERROR_NOT_READY`.
pub(crate) const NOT_READY: u32 = 600;

/// `CU_MEMHOSTALLOC_PORTABLE`: pinned for every context.
pub(crate) const HOST_PORTABLE: c_uint = 1;
/// `CU_MEMHOSTALLOC_DEVICEMAP`: kernels may read it.
pub(crate) const HOST_MAPPED: c_uint = 2;

/// `CU_EVENT_DEFAULT`: it has a time, and waiting for it stays awake.
pub(crate) const EVENT_DEFAULT: u32 = 0;

/// `CU_EVENT_DISABLE_TIMING`.
pub(crate) const EVENT_DISABLE_TIMING: c_uint = 2;

/// `CU_STREAM_CAPTURE_MODE_THREAD_LOCAL`.
pub(crate) const CAPTURE_THREAD_LOCAL: c_uint = 1;
/// `CU_STREAM_CAPTURE_MODE_RELAXED`.
pub(crate) const CAPTURE_RELAXED: c_uint = 2;

/// `CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES`.
pub(crate) const MAX_DYNAMIC_SHARED_BYTES: c_int = 8;

/// `CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN`.
pub(crate) const MAX_SHARED_BYTES_OPT_IN: c_int = 97;

/// `CU_LAUNCH_ATTRIBUTE_PROGRAMMATIC_STREAM_SERIALIZATION`.
pub(crate) const PROGRAMMATIC_SERIALIZATION: c_int = 6;

/// `CU_TENSOR_MAP_DATA_TYPE_FLOAT16`.
pub(crate) const TENSOR_F16: c_uint = 6;
/// `CU_TENSOR_MAP_DATA_TYPE_BFLOAT16`.
pub(crate) const TENSOR_BF16: c_uint = 9;
/// `CU_TENSOR_MAP_INTERLEAVE_NONE`.
pub(crate) const TENSOR_PLAIN: c_uint = 0;
/// `CU_TENSOR_MAP_SWIZZLE_128B`.
pub(crate) const TENSOR_SWIZZLE_128: c_uint = 3;
/// `CU_TENSOR_MAP_L2_PROMOTION_L2_256B`.
pub(crate) const TENSOR_PROMOTE_256: c_uint = 3;
/// `CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE`: zeros.
pub(crate) const TENSOR_FILL_ZEROS: c_uint = 0;

/// `CUlaunchAttribute`: an id, and a value of 64 bytes of which the first are used.
#[repr(C)]
#[derive(Clone, Copy)]
pub(crate) struct LaunchAttribute {
    pub(crate) id: c_int,
    pub(crate) padding: c_int,
    pub(crate) value: [u64; 8],
}

/// `CUlaunchConfig`.
#[repr(C)]
pub(crate) struct LaunchConfig {
    pub(crate) grid: [c_uint; 3],
    pub(crate) block: [c_uint; 3],
    pub(crate) shared_bytes: c_uint,
    pub(crate) stream: CUstream,
    pub(crate) attributes: *const LaunchAttribute,
    pub(crate) num_attributes: c_uint,
}

#[allow(clashing_extern_declarations)]
unsafe extern "C" {
    pub(crate) fn cuGetErrorName(code: u32, name: *mut *const c_char) -> u32;
    pub(crate) fn cuGetErrorString(code: u32, text: *mut *const c_char) -> u32;
    pub(crate) fn cuInit(flags: c_uint) -> u32;
    pub(crate) fn cuDriverGetVersion(version: *mut c_int) -> u32;
    pub(crate) fn cuDeviceGetCount(count: *mut c_int) -> u32;
    pub(crate) fn cuDeviceGetAttribute(value: *mut c_int, attribute: c_int, device: c_int) -> u32;
    pub(crate) fn cuCtxSetCurrent(context: CUcontext) -> u32;
    pub(crate) fn cuCtxSynchronize() -> u32;

    pub(crate) fn cuModuleLoadData(module: *mut CUmodule, image: *const c_void) -> u32;
    pub(crate) fn cuModuleGetFunction(f: *mut CUfunction, module: CUmodule, name: *const c_char) -> u32;
    pub(crate) fn cuModuleUnload(module: CUmodule) -> u32;

    pub(crate) fn cuMemGetInfo_v2(free: *mut usize, total: *mut usize) -> u32;
    pub(crate) fn cuMemAlloc_v2(address: *mut u64, num_bytes: usize) -> u32;
    pub(crate) fn cuMemFree_v2(address: u64) -> u32;
    pub(crate) fn cuMemHostAlloc(address: *mut *mut c_void, num_bytes: usize, flags: c_uint) -> u32;
    pub(crate) fn cuMemFreeHost(address: *mut c_void) -> u32;
    pub(crate) fn cuMemsetD8Async(dst: u64, value: u8, num_bytes: usize, stream: CUstream) -> u32;
    pub(crate) fn cuMemcpyHtoDAsync_v2(dst: u64, src: *const c_void, num_bytes: usize, s: CUstream) -> u32;
    pub(crate) fn cuMemcpyDtoHAsync_v2(dst: *mut c_void, src: u64, num_bytes: usize, s: CUstream) -> u32;

    pub(crate) fn cuStreamSynchronize(stream: CUstream) -> u32;
    pub(crate) fn cuStreamWaitEvent(stream: CUstream, event: CUevent, flags: c_uint) -> u32;
    pub(crate) fn cuEventCreate(event: *mut CUevent, flags: c_uint) -> u32;
    pub(crate) fn cuEventDestroy_v2(event: CUevent) -> u32;
    pub(crate) fn cuEventRecord(event: CUevent, stream: CUstream) -> u32;
    pub(crate) fn cuEventQuery(event: CUevent) -> u32;
    pub(crate) fn cuEventElapsedTime(milliseconds: *mut f32, start: CUevent, end: CUevent) -> u32;

    pub(crate) fn cuThreadExchangeStreamCaptureMode(mode: *mut c_uint) -> u32;
    pub(crate) fn cuStreamBeginCapture_v2(stream: CUstream, mode: c_uint) -> u32;
    pub(crate) fn cuStreamEndCapture(stream: CUstream, graph: *mut CUgraph) -> u32;
    pub(crate) fn cuGraphInstantiateWithFlags(exec: *mut CUgraphExec, graph: CUgraph, flags: u64) -> u32;
    pub(crate) fn cuGraphUpload(exec: CUgraphExec, stream: CUstream) -> u32;
    pub(crate) fn cuGraphLaunch(exec: CUgraphExec, stream: CUstream) -> u32;
    pub(crate) fn cuGraphExecDestroy(exec: CUgraphExec) -> u32;
    pub(crate) fn cuGraphDestroy(graph: CUgraph) -> u32;

    pub(crate) fn cuFuncSetAttribute(function: CUfunction, attribute: c_int, value: c_int) -> u32;
    /// Since CUDA 12.0.
    pub(crate) fn cuTensorMapEncodeTiled(
        map: *mut c_void,
        dtype: c_uint,
        rank: u32,
        address: u64,
        dims: *const u64,
        strides: *const u64,
        box_dims: *const u32,
        element_strides: *const u32,
        interleave: c_uint,
        swizzle: c_uint,
        promotion: c_uint,
        fill: c_uint,
    ) -> u32;
    /// Since CUDA 11.8.
    pub(crate) fn cuLaunchKernelEx(
        config: *const LaunchConfig,
        function: CUfunction,
        params: *mut *mut c_void,
        extra: *mut *mut c_void,
    ) -> u32;
}
