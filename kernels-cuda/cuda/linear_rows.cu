// Rows of dense matrices from one place to another: embedding, conversion of weights, alignment of activations.
//
// linear_convert_FROM_to_TO: grid [rows], block 256. out [rows, out_columns], zeros beyond `columns`.
// linear_embed_T: grid [num_tokens], block 256. The ids lie within the rows of the layer; out is the residual stream.
#include "linear_common.cuh"

struct LinearConvertParams {
    uint64_t in;   // [rows, in_stride]
    uint64_t out;  // [rows, out_columns]
    uint32_t columns;
    uint32_t in_stride;
    uint32_t out_columns;
    uint32_t pad;
};

struct LinearEmbedParams {
    uint64_t weight;  // [rows, weight_stride] T
    uint64_t ids;     // [num_tokens] i32
    uint64_t out;     // [num_tokens, out_stride] f32
    uint32_t first_row;  // ids below it, or from first_row + rows on, are another segment's
    uint32_t rows;
    uint32_t columns;
    uint32_t weight_stride;
    uint32_t out_stride;
    uint32_t pad;
};

struct LinearBiasParams {
    uint64_t out;   // [num_tokens, stride] T or f32
    uint64_t bias;  // [rows] f32
    uint32_t rows;
    uint32_t stride;
    uint32_t is_f32;
    uint32_t pad;
};

namespace linear {

static __device__ __forceinline__ float widen(float v) { return v; }
static __device__ __forceinline__ float widen(__half v) { return __half2float(v); }
static __device__ __forceinline__ float widen(__nv_bfloat16 v) { return __bfloat162float(v); }

template <typename From, typename T>
static __device__ __forceinline__ void convert(const LinearConvertParams& p) {
    let_next_start();
    wait_for_previous();
    const From* in = (const From*)p.in + (uint64_t)blockIdx.x * p.in_stride;
    typename T::Element* out = (typename T::Element*)p.out + (uint64_t)blockIdx.x * p.out_columns;
    for (uint32_t i = threadIdx.x; i < p.out_columns; i += blockDim.x)
        out[i] = T::round(i < p.columns ? widen(in[i]) : 0.0f);
}

// 16 bytes a thread where all three allow it, else element by element.
template <typename T>
static __device__ __forceinline__ void embed(const LinearEmbedParams& p) {
    let_next_start();
    wait_for_previous();
    const uint32_t row = (uint32_t)((const int*)p.ids)[blockIdx.x] - p.first_row;
    if (row >= p.rows) return;
    const typename T::Element* in = (const typename T::Element*)p.weight + (uint64_t)row * p.weight_stride;
    float* out = (float*)p.out + (uint64_t)blockIdx.x * p.out_stride;
    const uint64_t together = (uint64_t)in | (uint64_t)out | p.columns * 2;
    if (together % 16 == 0) {
        for (uint32_t i = threadIdx.x; i < p.columns / 8; i += blockDim.x) {
            const uint4 raw = load_stream((const uint4*)in + i);
            const typename T::Element* x = (const typename T::Element*)&raw;
            ((float4*)out)[2 * i] = make_float4(widen(x[0]), widen(x[1]), widen(x[2]), widen(x[3]));
            ((float4*)out)[2 * i + 1] = make_float4(widen(x[4]), widen(x[5]), widen(x[6]), widen(x[7]));
        }
    } else {
        for (uint32_t i = threadIdx.x; i < p.columns; i += blockDim.x) out[i] = widen(in[i]);
    }
}

template <typename T>
static __device__ __forceinline__ void add_bias(const LinearBiasParams& p) {
    let_next_start();
    wait_for_previous();
    const float* bias = (const float*)p.bias;
    const uint64_t start = (uint64_t)blockIdx.x * p.stride;
    for (uint32_t i = threadIdx.x; i < p.rows; i += blockDim.x) {
        if (p.is_f32) {
            ((float*)p.out)[start + i] += bias[i];
        } else {
            typename T::Element* out = (typename T::Element*)p.out + start + i;
            *out = T::round(T::widen(*out) + bias[i]);
        }
    }
}

}  // namespace linear

#define CONVERT(FROM, FROM_T, SUFFIX, T)                                                                          \
    extern "C" __global__ void __launch_bounds__(256) linear_convert_##FROM##_to_##SUFFIX(                        \
        const __grid_constant__ LinearConvertParams p) {                                                          \
        linear::convert<FROM_T, linear::T>(p);                                                                    \
    }
#define ROWS(SUFFIX, T)                                                                                           \
    CONVERT(f32, float, SUFFIX, T)                                                                                \
    CONVERT(f16, __half, SUFFIX, T)                                                                               \
    CONVERT(bf16, __nv_bfloat16, SUFFIX, T)                                                                       \
    extern "C" __global__ void __launch_bounds__(256) linear_embed_##SUFFIX(                                      \
        const __grid_constant__ LinearEmbedParams p) {                                                            \
        linear::embed<linear::T>(p);                                                                                         \
    }                                                                                                             \
    extern "C" __global__ void __launch_bounds__(256) linear_add_bias_##SUFFIX(                                   \
        const __grid_constant__ LinearBiasParams p) {                                                             \
        linear::add_bias<linear::T>(p);                                                                           \
    }

ROWS(bf16, Bf16)
ROWS(f16, F16)
