// Programmatic dependent launch: kernels that start before the one in front of them has ended. Nothing on devices before
// sm_90, where kernels follow each other.
#pragma once

namespace quire {

// Waits until the kernels before this one have ended and what they wrote is visible. A kernel launched with
// `Grid::overlaps` calls it in every thread before it reads or writes anything that another kernel of the step may touch;
// constants (weights, tables) and its own shared memory may be touched before.
__device__ __forceinline__ void wait_for_previous() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.wait;" ::: "memory");
#endif
}

// Lets the next kernel start its blocks while this one goes on; it still waits for the end of this one. Called before this
// kernel's own wait, a whole chain may be waiting at once: right where the next kernel reads constants alone before its
// wait. The kernels that write keys and values wait first, since decode attention behind them reads, before its wait, keys
// and plans that everything in front of them left.
__device__ __forceinline__ void let_next_start() {
#if defined(__CUDA_ARCH__) && __CUDA_ARCH__ >= 900
    asm volatile("griddepcontrol.launch_dependents;" ::: "memory");
#endif
}

}  // namespace quire
