//! The names of the trampolines.

/// Defines a trampoline for each name, and `NAMES` in the same order.
macro_rules! trampolines {
    ($($name:ident)*) => {
        /// A name's place in the table.
        #[allow(non_camel_case_types, clippy::enum_variant_names)]
        enum Symbol { $($name,)* Count }

        /// How many there are.
        pub(super) const NUM_SYMBOLS: usize = Symbol::Count as usize;

        /// Their names.
        pub(super) static NAMES: [&str; NUM_SYMBOLS] = [$(stringify!($name)),*];

        $(std::arch::global_asm!(
            concat!(".pushsection .text.quire.", stringify!($name), ",\"ax\",@progbits"),
            concat!(".globl ", stringify!($name)),
            concat!(".hidden ", stringify!($name)),
            concat!(".type ", stringify!($name), ",@function"),
            concat!(stringify!($name), ":"),
            "mov r11d, {index}",
            "jmp {enter}",
            concat!(".size ", stringify!($name), ", . - ", stringify!($name)),
            ".popsection",
            index = const Symbol::$name as usize,
            enter = sym super::enter,
        );)*
    };
}

// What `cust` refers to, what `ffi` declares, what the parts call of cuBLAS.
trampolines! {
    cuArray3DCreate_v2 cuArray3DGetDescriptor_v2 cuArrayDestroy cuCtxCreate_v2 cuCtxDestroy_v2
    cuCtxEnablePeerAccess cuCtxGetApiVersion cuCtxGetCacheConfig cuCtxGetCurrent cuCtxGetDevice
    cuCtxGetFlags cuCtxGetId cuCtxGetLimit cuCtxGetSharedMemConfig cuCtxGetStreamPriorityRange
    cuCtxPopCurrent_v2 cuCtxPushCurrent_v2 cuCtxSetCacheConfig cuCtxSetCurrent cuCtxSetLimit
    cuCtxSetSharedMemConfig cuCtxSynchronize cuDestroyExternalMemory cuDeviceCanAccessPeer cuDeviceGet
    cuDeviceGetAttribute cuDeviceGetCount cuDeviceGetName cuDeviceGetPCIBusId cuDeviceGetUuid
    cuDevicePrimaryCtxRelease_v2 cuDevicePrimaryCtxReset_v2 cuDevicePrimaryCtxRetain
    cuDevicePrimaryCtxSetFlags_v2 cuDeviceTotalMem_v2 cuDriverGetVersion cuEventCreate cuEventDestroy_v2
    cuEventElapsedTime cuEventQuery cuEventRecord cuEventSynchronize cuExternalMemoryGetMappedBuffer
    cuFuncGetAttribute cuFuncGetName cuFuncSetAttribute cuFuncSetCacheConfig cuFuncSetSharedMemConfig
    cuGetErrorName cuGetErrorString cuGetProcAddress cuGraphAddKernelNode cuGraphCreate
    cuGraphDebugDotPrint cuGraphDestroy cuGraphExecDestroy cuGraphGetEdges cuGraphGetNodes
    cuGraphInstantiateWithFlags cuGraphKernelNodeGetParams cuGraphLaunch cuGraphNodeGetType cuGraphUpload
    cuImportExternalMemory cuInit cuLaunchCooperativeKernel cuLaunchHostFunc cuLaunchKernel
    cuLaunchKernelEx cuLinkAddData_v2 cuLinkComplete cuLinkCreate_v2 cuLinkDestroy cuMemAdvise
    cuMemAllocAsync cuMemAllocHost_v2 cuMemAllocManaged cuMemAlloc_v2 cuMemFreeAsync cuMemFreeHost
    cuMemFree_v2 cuMemGetInfo_v2 cuMemHostAlloc cuMemHostGetDevicePointer_v2 cuMemHostRegister_v2
    cuMemHostUnregister cuMemPrefetchAsync cuMemcpy2D_v2 cuMemcpyAtoH_v2 cuMemcpyDtoDAsync_v2
    cuMemcpyDtoD_v2 cuMemcpyDtoHAsync_v2 cuMemcpyDtoH_v2 cuMemcpyHtoA_v2 cuMemcpyHtoDAsync_v2
    cuMemcpyHtoD_v2 cuMemcpyPeerAsync cuMemsetD16Async cuMemsetD16_v2 cuMemsetD32Async cuMemsetD32_v2
    cuMemsetD8Async cuMemsetD8_v2 cuModuleGetFunction cuModuleGetGlobal_v2 cuModuleLoad cuModuleLoadData
    cuModuleLoadDataEx cuModuleUnload cuOccupancyAvailableDynamicSMemPerBlock
    cuOccupancyMaxActiveBlocksPerMultiprocessor cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags
    cuOccupancyMaxActiveClusters cuOccupancyMaxPotentialBlockSize cuPointerGetAttribute
    cuStreamBeginCapture_v2 cuStreamCreate cuStreamCreateWithPriority cuStreamDestroy_v2
    cuStreamEndCapture cuStreamGetFlags cuStreamGetPriority cuStreamIsCapturing cuStreamQuery
    cuStreamSynchronize cuStreamWaitEvent cuSurfObjectCreate cuSurfObjectDestroy
    cuSurfObjectGetResourceDesc cuTensorMapEncodeTiled cuTensorMapReplaceAddress cuTexObjectCreate
    cuTexObjectDestroy cuTexObjectGetResourceDesc cuTexObjectGetResourceViewDesc
    cuThreadExchangeStreamCaptureMode cublasCreate_v2 cublasDestroy_v2 cublasGemmEx
    cublasGemmStridedBatchedEx cublasGetVersion_v2 cublasSetMathMode cublasSetStream_v2
    cublasSetWorkspace_v2 cublasQuireTest
}

#[cfg(test)]
unsafe extern "C" {
    /// A trampoline that the tests alone know.
    pub(super) fn cublasQuireTest(a: u64, b: f64, c: u64, d: u64, e: u64, f: u64, g: u64, h: u64) -> f64;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_name_stands_twice() {
        let mut names = NAMES.to_vec();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), NUM_SYMBOLS);
    }
}
