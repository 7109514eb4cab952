// Copies of whole rows inside one tensor.
//
// copy_rows: grid [pairs, parts of a row], 256 threads. pairs[i] = (from, to); no row is the target of one pair and
// part of another. The pairs may lie in pinned host memory. Any row length and alignment; 16 bytes a thread where
// both allow it.

#include <cstdint>

struct CopyRowsParams {
    char *rows;
    const uint2 *pairs;
    uint64_t row_bytes;
    uint64_t stride_bytes;
};

constexpr int THREADS = 256;
// Loads in flight a thread.
constexpr int UNROLL = 4;

template <typename T>
__device__ void copy(const T *__restrict__ from, T *__restrict__ to, uint64_t n) {
    constexpr uint64_t BLOCK = THREADS * UNROLL;
    for (uint64_t base = blockIdx.y * BLOCK; base < n; base += gridDim.y * BLOCK) {
        T values[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            const uint64_t at = base + i * THREADS + threadIdx.x;
            if (at < n) values[i] = from[at];
        }
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            const uint64_t at = base + i * THREADS + threadIdx.x;
            if (at < n) to[at] = values[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) copy_rows(const __grid_constant__ CopyRowsParams p) {
    const uint2 pair = p.pairs[blockIdx.x];
    const char *from = p.rows + pair.x * p.stride_bytes;
    char *to = p.rows + pair.y * p.stride_bytes;
    const bool aligned = ((uint64_t)p.rows | p.row_bytes | p.stride_bytes) % 16 == 0;
    if (aligned) {
        copy((const uint4 *)from, (uint4 *)to, p.row_bytes / 16);
    } else {
        copy(from, to, p.row_bytes);
    }
}
