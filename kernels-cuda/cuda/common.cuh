// What kernel families share: element types, 16-byte vectors, reductions, and the overlap of kernels.
#pragma once

#include <cstdint>
#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include "overlap.cuh"

namespace quire {

using bf16 = __nv_bfloat16;
using f16 = __half;

constexpr int WARP = 32;
constexpr unsigned ALL_LANES = 0xffffffffu;

// ---- element types: arithmetic is in f32, storage in T -------------------------------------------------------------

template <typename T> __device__ __forceinline__ float to_f32(T x);
template <> __device__ __forceinline__ float to_f32<float>(float x) { return x; }
template <> __device__ __forceinline__ float to_f32<bf16>(bf16 x) { return __bfloat162float(x); }
template <> __device__ __forceinline__ float to_f32<f16>(f16 x) { return __half2float(x); }

// Rounds to nearest, ties to even.
template <typename T> __device__ __forceinline__ T from_f32(float x);
template <> __device__ __forceinline__ float from_f32<float>(float x) { return x; }
template <> __device__ __forceinline__ bf16 from_f32<bf16>(float x) { return __float2bfloat16_rn(x); }
template <> __device__ __forceinline__ f16 from_f32<f16>(float x) { return __float2half_rn(x); }

// Two elements that lie side by side in memory, the first in the low half.
template <typename T> struct Pair;
template <> struct Pair<bf16> {
    using type = __nv_bfloat162;
    static __device__ __forceinline__ float2 unpack(type x) { return __bfloat1622float2(x); }
    static __device__ __forceinline__ type pack(float a, float b) { return __floats2bfloat162_rn(a, b); }
};
template <> struct Pair<f16> {
    using type = __half2;
    static __device__ __forceinline__ float2 unpack(type x) { return __half22float2(x); }
    static __device__ __forceinline__ type pack(float a, float b) { return __floats2half2_rn(a, b); }
};

// ---- 16 bytes: eight elements of a 16-bit type ---------------------------------------------------------------------

// Eight elements as f32, from 16 aligned bytes.
template <typename T> __device__ __forceinline__ void unpack8(const uint4 &raw, float (&x)[8]) {
    using P = Pair<T>;
    const uint32_t words[4] = {raw.x, raw.y, raw.z, raw.w};
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        typename P::type pair;
        memcpy(&pair, &words[i], 4);
        const float2 two = P::unpack(pair);
        x[2 * i] = two.x;
        x[2 * i + 1] = two.y;
    }
}

template <typename T> __device__ __forceinline__ uint4 pack8(const float (&x)[8]) {
    using P = Pair<T>;
    uint32_t words[4];
#pragma unroll
    for (int i = 0; i < 4; ++i) {
        const typename P::type pair = P::pack(x[2 * i], x[2 * i + 1]);
        memcpy(&words[i], &pair, 4);
    }
    return make_uint4(words[0], words[1], words[2], words[3]);
}

template <typename T> __device__ __forceinline__ void load8(const T *from, float (&x)[8]) {
    unpack8<T>(*reinterpret_cast<const uint4 *>(from), x);
}

template <typename T> __device__ __forceinline__ void store8(T *to, const float (&x)[8]) {
    *reinterpret_cast<uint4 *>(to) = pack8<T>(x);
}

// ---- reductions ----------------------------------------------------------------------------------------------------

// The sum over the lanes of a warp, in every lane; one order of addition for every lane.
__device__ __forceinline__ float warp_sum(float x) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) x += __shfl_xor_sync(ALL_LANES, x, offset);
    return x;
}

__device__ __forceinline__ float warp_max(float x) {
#pragma unroll
    for (int offset = WARP / 2; offset > 0; offset /= 2) x = fmaxf(x, __shfl_xor_sync(ALL_LANES, x, offset));
    return x;
}

// The sum over a block of at most 1024 threads, a whole number of warps, in every thread. `shared` holds 32 floats and
// may be used again after the next __syncthreads.
__device__ __forceinline__ float block_sum(float x, float *shared) {
    const int lane = threadIdx.x % WARP, warp = threadIdx.x / WARP, num_warps = blockDim.x / WARP;
    x = warp_sum(x);
    if (num_warps == 1) return x;
    if (lane == 0) shared[warp] = x;
    __syncthreads();
    return warp_sum(lane < num_warps ? shared[lane] : 0.0f);
}

} // namespace quire
