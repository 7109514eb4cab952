// Copies of whole rows inside one tensor.
//
// copy_rows: grid [pairs, parts of a row], 256 threads. pairs[i] = (from, to); no row is the target of one pair and
// part of another. The pairs may lie in pinned host memory. Any row length and alignment; 16 bytes a thread where
// both allow it.
//
// copy_writes: grid [writes, parts of 4 KiB], 256 threads. Writes from pinned host memory, `from` at a multiple of 16;
// no two write the same byte.
//
// copy_fault: writes to an address where nothing is, for tests.

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

struct Write {
    char *to;
    const char *from;
    uint64_t num_bytes;
};

struct CopyWritesParams {
    Write writes[32];
};

extern "C" __global__ void __launch_bounds__(THREADS) copy_writes(const __grid_constant__ CopyWritesParams p) {
    const Write &write = p.writes[blockIdx.x];
    const uint64_t start = (blockIdx.y * (uint64_t)THREADS + threadIdx.x) * 16;
    if (start >= write.num_bytes) return;
    char *to = write.to + start;
    // Reads past the end of the write, to a multiple of 16: the ring is whole there.
    const uint4 values = *(const uint4 *)(write.from + start);
    const uint64_t rest = write.num_bytes - start;
    if (rest >= 16 && (uint64_t)to % 16 == 0) {
        *(uint4 *)to = values;
        return;
    }
    const uint32_t words[4] = {values.x, values.y, values.z, values.w};
#pragma unroll
    for (int i = 0; i < 16; ++i) {
        if (i < rest) to[i] = (char)(words[i / 4] >> (i % 4 * 8));
    }
}

extern "C" __global__ void copy_fault(const __grid_constant__ uint64_t nowhere) {
    *(volatile uint32_t *)nowhere = 1;
}
