// RMS normalization, residual addition, gathering of rows.
//
// rms_norm  (bf16, f16)
//   x, delta, out: [rows, columns] with row strides in elements; weight: [columns] f32.
//   residual form (delta != 0): x += delta, rounded to the dtype and stored, then out = norm(x); else out = norm(x).
//   out may be x where delta is 0.
//   One of four entries, by `columns` alone, so that a row's sum has one order whatever the number of rows:
//     *_warp   columns <= 1024, multiple of 8, all 16-byte aligned: a warp a row, 4 rows a block of 128;
//              grid = ceil(rows / 4)
//     *_block  columns <= 8192: a block of columns / 8 threads (rounded up to 32) a row; grid = rows
//     *_block2 columns <= 16384: half the threads, two vectors each; grid = rows
//     *_any    whatever else: 256 threads a row, element by element, x read twice; grid = rows
// add  (bf16, f16): x, residual [rows, columns]; residual += x. 256 threads, grid = ceil(rows * ceil(columns / 8) / 256)
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

// Adds where there is something to add; the sum is what the dtype holds, as if it had been stored and read again.
template <typename T>
__device__ __forceinline__ void add_delta(const uint4& raw_x, const uint4& raw_delta, float (&x)[8], uint4* sum) {
    float delta[8];
    unpack8<T>(raw_x, x);
    unpack8<T>(raw_delta, delta);
#pragma unroll
    for (int i = 0; i < 8; i++) x[i] += delta[i];
    *sum = pack8<T>(x);
    unpack8<T>(*sum, x);
}

template <typename T, int NV, bool WARP> __device__ __forceinline__ void rms_norm_vectors(const NormParams& p) {
    __shared__ float scratch[33];
    const int lanes = WARP ? 32 : blockDim.x;
    const int me = WARP ? threadIdx.x & 31 : threadIdx.x;
    const uint32_t row = WARP ? blockIdx.x * (blockDim.x / 32) + threadIdx.x / 32 : blockIdx.x;
    const int vectors = p.columns / 8;
    const float4* weight = reinterpret_cast<const float4*>(p.weight);
    float4 w[NV][2];
#pragma unroll
    for (int v = 0; v < NV; v++) {
        const int at = me + v * lanes;
        if (at < vectors) {
            w[v][0] = __ldg(weight + 2 * at);
            w[v][1] = __ldg(weight + 2 * at + 1);
        }
    }
    let_next_start();
    wait_for_previous();
    if (row >= p.rows) return;

    uint4* x_row = reinterpret_cast<uint4*>(reinterpret_cast<T*>(p.x) + row * p.x_stride);
    const uint4* delta_row = reinterpret_cast<const uint4*>(reinterpret_cast<const T*>(p.delta) + row * p.delta_stride);
    uint4* out_row = reinterpret_cast<uint4*>(reinterpret_cast<T*>(p.out) + row * p.out_stride);
    const bool adds = p.delta != 0;
    uint4 raw[NV], raw_delta[NV];
#pragma unroll
    for (int v = 0; v < NV; v++) {
        const int at = me + v * lanes;
        raw[v] = make_uint4(0, 0, 0, 0);
        raw_delta[v] = make_uint4(0, 0, 0, 0);
        if (at < vectors) {
            raw[v] = x_row[at];
            if (adds) raw_delta[v] = delta_row[at];
        }
    }
    float x[NV][8];
    float square = 0.0f;
#pragma unroll
    for (int v = 0; v < NV; v++) {
        const int at = me + v * lanes;
        if (adds) {
            uint4 sum;
            add_delta<T>(raw[v], raw_delta[v], x[v], &sum);
            if (at < vectors) x_row[at] = sum;
        } else {
            unpack8<T>(raw[v], x[v]);
        }
#pragma unroll
        for (int i = 0; i < 8; i++) square += x[v][i] * x[v][i];
    }
    square = WARP ? warp_sum(square) : block_sum(square, scratch);
    const float scale = rsqrtf(square / (float)p.columns + p.eps);
#pragma unroll
    for (int v = 0; v < NV; v++) {
        const int at = me + v * lanes;
        if (at >= vectors) continue;
        const float weights[8] = {w[v][0].x, w[v][0].y, w[v][0].z, w[v][0].w,
                                    w[v][1].x, w[v][1].y, w[v][1].z, w[v][1].w};
        float y[8];
#pragma unroll
        for (int i = 0; i < 8; i++) y[i] = x[v][i] * scale * weights[i];
        out_row[at] = pack8<T>(y);
    }
}

// A thread reads again only what it alone wrote, so `out` may be `x`.
template <typename T> __device__ __forceinline__ void rms_norm_elements(const NormParams& p) {
    __shared__ float scratch[33];
    let_next_start();
    wait_for_previous();
    const int64_t row = blockIdx.x;
    T* x = reinterpret_cast<T*>(p.x) + row * p.x_stride;
    const T* delta = reinterpret_cast<const T*>(p.delta) + row * p.delta_stride;
    T* out = reinterpret_cast<T*>(p.out) + row * p.out_stride;
    const float* weight = reinterpret_cast<const float*>(p.weight);
    float square = 0.0f;
    for (uint32_t i = threadIdx.x; i < p.columns; i += blockDim.x) {
        float value = to_f32(x[i]);
        if (p.delta != 0) {
            const T sum = from_f32<T>(value + to_f32(delta[i]));
            x[i] = sum;
            value = to_f32(sum);
        }
        square += value * value;
    }
    square = block_sum(square, scratch);
    const float scale = rsqrtf(square / (float)p.columns + p.eps);
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
    T* residual = reinterpret_cast<T*>(p.residual) + row * p.residual_stride + at;
    if (p.is_vector) {
        float sum[8];
        add_delta<T>(*reinterpret_cast<const uint4*>(residual), *reinterpret_cast<const uint4*>(x), sum,
                     reinterpret_cast<uint4*>(residual));
        return;
    }
    for (uint32_t i = 0; i < min((uint32_t)8, p.columns - at); i++) {
        residual[i] = from_f32<T>(to_f32(residual[i]) + to_f32(x[i]));
    }
}

}  // namespace quire

using namespace quire;

#define NORM_ENTRIES(T, SUFFIX)                                                                                   \
    extern "C" __global__ void __launch_bounds__(128) rms_norm_warp_##SUFFIX(const __grid_constant__ NormParams p) { \
        rms_norm_vectors<T, 4, true>(p);                                                                          \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(1024)                                                            \
        rms_norm_block_##SUFFIX(const __grid_constant__ NormParams p) {                                           \
        rms_norm_vectors<T, 1, false>(p);                                                                         \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(1024)                                                            \
        rms_norm_block2_##SUFFIX(const __grid_constant__ NormParams p) {                                          \
        rms_norm_vectors<T, 2, false>(p);                                                                         \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) rms_norm_any_##SUFFIX(const __grid_constant__ NormParams p) { \
        rms_norm_elements<T>(p);                                                                                  \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) add_##SUFFIX(const __grid_constant__ AddParams p) { add<T>(p); }

NORM_ENTRIES(bf16, bf16)
NORM_ENTRIES(f16, f16)

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
