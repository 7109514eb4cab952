// What the kernels of linear layers share: 16-byte loads, tensor-core products.
#pragma once

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <stdint.h>

#include "overlap.cuh"

namespace linear {

using quire::let_next_start;
using quire::wait_for_previous;

// The two activation types. A pair of elements is a 32-bit word, as fragments of mma.sync hold them.
struct Bf16 {
    using Element = __nv_bfloat16;
    static constexpr uint32_t ONES = 0x3f803f80;
    static __device__ __forceinline__ Element round(float v) { return __float2bfloat16_rn(v); }
    static __device__ __forceinline__ float widen(Element v) { return __bfloat162float(v); }
    static __device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint32_t b0, uint32_t b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
};

struct F16 {
    using Element = __half;
    static constexpr uint32_t ONES = 0x3c003c00;
    static __device__ __forceinline__ Element round(float v) { return __float2half_rn(v); }
    static __device__ __forceinline__ float widen(Element v) { return __half2float(v); }
    static __device__ __forceinline__ void mma(float (&c)[4], uint32_t a0, uint32_t a1, uint32_t a2, uint32_t a3,
                                               uint32_t b0, uint32_t b1) {
        asm("mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%0,%1,%2,%3}, {%4,%5,%6,%7}, {%8,%9}, {%0,%1,%2,%3};"
            : "+f"(c[0]), "+f"(c[1]), "+f"(c[2]), "+f"(c[3])
            : "r"(a0), "r"(a1), "r"(a2), "r"(a3), "r"(b0), "r"(b1));
    }
};

static __device__ __forceinline__ uint32_t subtract_bf16(uint32_t a, uint32_t b) {
    uint32_t d;  // a - b as fma(b, -1, a): sm_80 has no plain subtraction of bf16 pairs
    asm("fma.rn.bf16x2 %0, %1, %2, %3;" : "=r"(d) : "r"(b), "r"(0xbf80bf80u), "r"(a));
    return d;
}

static __device__ __forceinline__ uint32_t subtract_f16(uint32_t a, uint32_t b) {
    uint32_t d;
    asm("sub.f16x2 %0, %1, %2;" : "=r"(d) : "r"(a), "r"(b));
    return d;
}

// Weights are read once: they pass by the first cache, and the second fetches whole lines.
static __device__ __forceinline__ uint4 load_stream(const void* p) {
    uint4 v;
    asm volatile("ld.global.nc.L1::no_allocate.L2::128B.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p));
    return v;
}

// Activations are read by many warps. Not the read-only path: the kernel before may still be writing them when this
// one starts, so the load must not move above wait_for_previous().
static __device__ __forceinline__ uint4 load_shared_by_many(const void* p) {
    uint4 v;
    asm volatile("ld.global.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "l"(p)
                 : "memory");
    return v;
}

// 16 bytes from memory to shared memory, past the first cache, without a register.
static __device__ __forceinline__ void copy_async(uint32_t to, const void* from) {
    asm volatile("cp.async.cg.shared.global.L2::128B [%0], [%1], 16;" ::"r"(to), "l"(from) : "memory");
}
static __device__ __forceinline__ void commit_copies() { asm volatile("cp.async.commit_group;" ::: "memory"); }
template <int PENDING>
static __device__ __forceinline__ void wait_for_copies() {
    asm volatile("cp.async.wait_group %0;" ::"n"(PENDING) : "memory");
}

static __device__ __forceinline__ uint4 load_shared(uint32_t from) {
    uint4 v;
    asm volatile("ld.shared.v4.u32 {%0,%1,%2,%3}, [%4];"
                 : "=r"(v.x), "=r"(v.y), "=r"(v.z), "=r"(v.w)
                 : "r"(from)
                 : "memory");
    return v;
}

// Where the sums of a layer go.
struct Output {
    uint64_t out;   // [num_tokens, stride] T or f32
    uint64_t bias;  // [rows] f32, or 0
    uint32_t rows;
    uint32_t stride;
    uint32_t num_tokens;
    uint32_t is_f32;
};

template <typename T>
static __device__ __forceinline__ void store_sum(const Output& o, uint32_t token, uint32_t row, float sum) {
    if (o.bias) sum += ((const float*)o.bias)[row];
    const uint64_t at = (uint64_t)token * o.stride + row;
    if (o.is_f32)
        ((float*)o.out)[at] = sum;
    else
        ((typename T::Element*)o.out)[at] = T::round(sum);
}

// The end of the kernels for few tokens. Warp `slice * row_groups + group` holds the sums of its slice of the columns for
// 8 EIGHTS rows and 8 NT tokens as m16n8 fragments; the slices are added in order. They pass through shared memory, where
// warp w has room for 8 NT x (8 EIGHTS + 4) floats from `partial + w * warp_floats` on: the pitch keeps the fragments'
// stores free of bank conflicts.
template <typename T, int NT, int EIGHTS>
static __device__ __forceinline__ void store_sums(const float (&c)[(EIGHTS + 1) / 2][NT][4], const Output& o,
                                                  uint32_t first_row, uint32_t row_groups, uint32_t num_slices,
                                                  float* partial, uint32_t warp_floats) {
    constexpr uint32_t ROWS = 8 * EIGHTS, PITCH = ROWS + 4;
    const uint32_t g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    float* mine = partial + threadIdx.x / 32 * warp_floats;
#pragma unroll
    for (int e = 0; e < EIGHTS; e++)
#pragma unroll
        for (int n = 0; n < NT; n++)
#pragma unroll
            for (int i = 0; i < 2; i++) {
                const uint32_t token = 8 * n + 2 * t + i;
                if (token < o.num_tokens) mine[token * PITCH + 8 * e + g] = c[e / 2][n][2 * (e % 2) + i];
            }
    __syncthreads();
    const uint32_t block_rows = ROWS * row_groups;
    for (uint32_t i = threadIdx.x; i < block_rows * o.num_tokens; i += blockDim.x) {
        const uint32_t token = i / block_rows, block_row = i % block_rows;
        if (first_row + block_row >= o.rows) continue;
        const float* part = partial + block_row / ROWS * warp_floats + token * PITCH + block_row % ROWS;
        float sum = 0;
        for (uint32_t k = 0; k < num_slices; k++) sum += part[k * row_groups * warp_floats];
        store_sum<T>(o, token, first_row + block_row, sum);
    }
}

}  // namespace linear
