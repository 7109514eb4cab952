// RMS normalization, residual addition, gathering of rows.
//
// rms_norm  (x in bf16, f16 or f32; out in bf16, f16)
//   x, delta, out: [rows, columns] with row strides in elements; weight: [columns] f32.
//   residual form (x in f32, delta != 0, of out's type): x += delta, stored, then out = norm(x); else out = norm(x).
//   out may be x where they are of one type.
//   One of four entries, by `columns` alone, so that a row's sum has one order whatever the number of rows:
//     *_warp   columns <= 1024, multiple of 8, all 16-byte aligned: a warp a row, 4 rows a block of 128;
//              grid = ceil(rows / 4)
//     *_block  columns <= 8192: a block of columns / 8 threads (rounded up to 32) a row; grid = rows
//     *_block2 columns <= 16384: half the threads, two vectors each; grid = rows
//     *_any    whatever else: 256 threads a row, element by element, x read twice; grid = rows
//   Names: rms_norm_SHAPE_T, and rms_norm_SHAPE_f32_T where x is f32.
// add  (x in bf16, f16; residual f32): [rows, columns]; residual += x. 256 threads,
//   grid = ceil(rows * ceil(columns / 8) / 256)
// gather_rows (any dtype): out[i] = x[idx[i]], rows of `row_bytes`; 256 threads, 16 bytes each;
//   grid = (rows of out, ceil(row_bytes / 4096))

// hot: rms_norm_warp_* rms_norm_block_* rms_norm_block2_* add_*
// hot: rms_norm_* add_*
#include "common.cuh"

namespace quire {

struct NormParams {
    uint64_t x, delta, weight, out;
    int64_t x_stride, delta_stride, out_stride;
    uint32_t rows, columns;
    float eps;
    uint32_t unused;
};

struct AddParams {
    uint64_t x, residual;
    int64_t x_stride, residual_stride;
    uint32_t rows, columns, is_vector, unused;
};

struct GatherParams {
    uint64_t x, idx, out;
    int64_t x_stride_bytes, out_stride_bytes, row_bytes;
    uint32_t is_vector, element_bytes;
};

// Of the mean of the squares and eps; NaN where the squares overflow, since 0 would make a row of zeros of what the model
// did not compute.
__device__ __forceinline__ float inverse_rms(float mean_square) {
    return mean_square < INFINITY ? rsqrtf(mean_square) : NAN;
}

// Eight elements as they lie in memory, so that all loads of a thread are on their way before one is used.
template <typename X> struct Raw8 {
    uint4 words;
    __device__ __forceinline__ void load(const X* from) { words = *reinterpret_cast<const uint4*>(from); }
    __device__ __forceinline__ void unpack(float (&x)[8]) const { unpack8<X>(words, x); }
};
template <> struct Raw8<float> {
    float4 low, high;
    __device__ __forceinline__ void load(const float* from) {
        low = reinterpret_cast<const float4*>(from)[0];
        high = reinterpret_cast<const float4*>(from)[1];
    }
    __device__ __forceinline__ void unpack(float (&x)[8]) const {
        const float all[8] = {low.x, low.y, low.z, low.w, high.x, high.y, high.z, high.w};
#pragma unroll
        for (int i = 0; i < 8; i++) x[i] = all[i];
    }
};

__device__ __forceinline__ void store_f32(float* to, const float (&x)[8]) {
    reinterpret_cast<float4*>(to)[0] = make_float4(x[0], x[1], x[2], x[3]);
    reinterpret_cast<float4*>(to)[1] = make_float4(x[4], x[5], x[6], x[7]);
}

// Only the residual stream, in f32, is added to.
template <typename X> constexpr bool IS_RESIDUAL = sizeof(X) == 4;

template <typename X, typename T, int NV, bool WARP>
__device__ __forceinline__ void rms_norm_vectors(const NormParams& p) {
    __shared__ float scratch[33];
    const int lanes = WARP ? 32 : blockDim.x;
    const int me = WARP ? threadIdx.x & 31 : threadIdx.x;
    const uint32_t row = WARP ? blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32 : blockIdx.x;
    const int vectors = p.columns / 8;
    const float* weight = reinterpret_cast<const float*>(p.weight);
    Raw8<float> w[NV];
#pragma unroll
    for (int v = 0; v < NV; v++) {
        const int at = me + v * lanes;
        if (at < vectors) w[v].load(weight + 8 * at);
    }
    let_next_start();
    wait_for_previous();
    if (row >= p.rows) return;

    X* x_row = reinterpret_cast<X*>(p.x) + row * p.x_stride;
    const T* delta_row = reinterpret_cast<const T*>(p.delta) + row * p.delta_stride;
    T* out_row = reinterpret_cast<T*>(p.out) + row * p.out_stride;
    const bool adds = IS_RESIDUAL<X> && p.delta != 0;
    Raw8<X> raw[NV] = {};
    Raw8<T> raw_delta[NV] = {};
#pragma unroll
    for (int v = 0; v < NV; v++) {
        const int at = me + v * lanes;
        if (at < vectors) {
            raw[v].load(x_row + 8 * at);
            if (adds) raw_delta[v].load(delta_row + 8 * at);
        }
    }
    float x[NV][8];
    float square = 0.0f;
#pragma unroll
    for (int v = 0; v < NV; v++) {
        const int at = me + v * lanes;
        raw[v].unpack(x[v]);
        if (adds) {
            float delta[8];
            raw_delta[v].unpack(delta);
#pragma unroll
            for (int i = 0; i < 8; i++) x[v][i] += delta[i];
            if (at < vectors) store_f32(reinterpret_cast<float*>(x_row) + 8 * at, x[v]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) square += x[v][i] * x[v][i];
    }
    square = WARP ? warp_sum(square) : block_sum(square, scratch);
    const float scale = inverse_rms(square / (float)p.columns + p.eps);
#pragma unroll
    for (int v = 0; v < NV; v++) {
        const int at = me + v * lanes;
        if (at >= vectors) continue;
        float weights[8], y[8];
        w[v].unpack(weights);
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = x[v][i] * scale * weights[i];
        store8(out_row + 8 * at, y);
    }
}

// A thread reads again only what it alone wrote, so `out` may be `x`.
template <typename X, typename T> __device__ __forceinline__ void rms_norm_elements(const NormParams& p) {
    __shared__ float scratch[33];
    let_next_start();
    wait_for_previous();
    const int64_t row = blockIdx.x;
    X* x = reinterpret_cast<X*>(p.x) + row * p.x_stride;
    const T* delta = reinterpret_cast<const T*>(p.delta) + row * p.delta_stride;
    T* out = reinterpret_cast<T*>(p.out) + row * p.out_stride;
    const float* weight = reinterpret_cast<const float*>(p.weight);
    float square = 0.0f;
    for (uint32_t i = threadIdx.x; i < p.columns; i += blockDim.x) {
        float value = to_f32(x[i]);
        if (IS_RESIDUAL<X> && p.delta != 0) {
            value += to_f32(delta[i]);
            x[i] = from_f32<X>(value);
        }
        square += value * value;
    }
    square = block_sum(square, scratch);
    const float scale = inverse_rms(square / (float)p.columns + p.eps);
    for (uint32_t i = threadIdx.x; i < p.columns; i += blockDim.x) {
        out[i] = from_f32<T>(to_f32(x[i]) * scale * weight[i]);
    }
}

template <typename T> __device__ __forceinline__ void add(const AddParams& p) {
    let_next_start();
    wait_for_previous();
    const uint32_t per_row = (p.columns + 8 - 1) / 8;
    const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x, row = index / per_row;
    if (row >= p.rows) return;
    const uint32_t at = (index - row * per_row) * 8;
    const T* x = reinterpret_cast<const T*>(p.x) + row * p.x_stride + at;
    float* residual = reinterpret_cast<float*>(p.residual) + row * p.residual_stride + at;
    if (p.is_vector) {
        float sum[8], more[8];
        Raw8<float> raw;
        raw.load(residual);
        raw.unpack(sum);
        load8(x, more);
#pragma unroll
        for (int i = 0; i < 8; i++) sum[i] += more[i];
        store_f32(residual, sum);
        return;
    }
    for (uint32_t i = 0; i < min((uint32_t)8, p.columns - at); i++) residual[i] += to_f32(x[i]);
}

}  // namespace quire

using namespace quire;

#define RMS_NORM(X, T, SUFFIX)                                                                                    \
    extern "C" __global__ void __launch_bounds__(128) rms_norm_warp_##SUFFIX(const __grid_constant__ NormParams p) { \
        rms_norm_vectors<X, T, 4, true>(p);                                                                       \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(1024)                                                            \
        rms_norm_block_##SUFFIX(const __grid_constant__ NormParams p) {                                           \
        rms_norm_vectors<X, T, 1, false>(p);                                                                      \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(1024)                                                            \
        rms_norm_block2_##SUFFIX(const __grid_constant__ NormParams p) {                                          \
        rms_norm_vectors<X, T, 2, false>(p);                                                                      \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) rms_norm_any_##SUFFIX(const __grid_constant__ NormParams p) { \
        rms_norm_elements<X, T>(p);                                                                               \
    }
#define NORMS(T, SUFFIX)                                                                                          \
    RMS_NORM(T, T, SUFFIX)                                                                                        \
    RMS_NORM(float, T, f32_##SUFFIX)                                                                              \
    extern "C" __global__ void __launch_bounds__(256) add_##SUFFIX(const __grid_constant__ AddParams p) { add<T>(p); }

NORMS(bf16, bf16)
NORMS(f16, f16)

extern "C" __global__ void __launch_bounds__(256) gather_rows(const __grid_constant__ GatherParams p) {
    let_next_start();
    wait_for_previous();
    const int64_t row = blockIdx.x, from = reinterpret_cast<const int32_t*>(p.idx)[row];
    const char* x = reinterpret_cast<const char*>(p.x) + from * p.x_stride_bytes;
    char* out = reinterpret_cast<char*>(p.out) + row * p.out_stride_bytes;
    const int64_t at = ((int64_t)blockIdx.y * blockDim.x + threadIdx.x) * 16;
    if (at >= p.row_bytes) return;
    if (p.is_vector) {
        *reinterpret_cast<uint4*>(out + at) = *reinterpret_cast<const uint4*>(x + at);
        return;
    }
    const int64_t end = min(at + 16, p.row_bytes);
    for (int64_t i = at; i < end; i += p.element_bytes) {
        if (p.element_bytes == 2) {
            *reinterpret_cast<uint16_t*>(out + i) = *reinterpret_cast<const uint16_t*>(x + i);
        } else {
            *reinterpret_cast<uint32_t*>(out + i) = *reinterpret_cast<const uint32_t*>(x + i);
        }
    }
}
