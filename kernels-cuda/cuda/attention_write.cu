// Rotary positions and the writing of keys and values to their slots, in one launch.
//
// A thread takes a group of 2 * WIDTH elements of one head of one token, two vectors that are rotated with each other
// (Su et al., 2021); elements past the rotated ones, and values, are only moved. Without queries and a table this is
// the plain write.
//
//   grid  (ceil(num_tokens * groups of a token / 128))   threads 128
//   q     [num_tokens, num_heads * head_dim], rotated in place       k, v alike with num_kv_heads; k in place too
//   slots [num_tokens] int32, block * block_size + offset; -1 is not written
//   block keys [num_kv_heads, block_size, head_dim], then values alike

#include "attention_common.cuh"

namespace attention {

struct WriteParams {
    uint64_t q;          // T; unused without queries
    uint64_t k;          // T
    uint64_t v;          // T
    uint64_t blocks;     // S
    uint64_t slots;      // int32
    uint64_t positions;  // int32; unused without a rotation
    uint64_t cos_sin;    // float [max_positions, rotary_dim]
    int64_t block_bytes;
    int32_t q_stride;
    int32_t k_stride;
    int32_t v_stride;
    int32_t num_tokens;
    int32_t num_heads;  // 0: no queries.
    int32_t num_kv_heads;
    int32_t head_dim;
    int32_t rotary_dim;      // 0: no rotation.
    int32_t is_interleaved;  // Pairs are neighbours, not a half of the rotated elements apart.
    int32_t block_shift;
    float k_scale;  // What a cache of 8-bit floats holds is divided by it.
    float v_scale;
};

template <typename T, int WIDTH>
struct alignas(WIDTH * sizeof(T)) Vector {
    T at[WIDTH];
};

template <typename S>
__device__ __forceinline__ S to_stored(float x);
template <>
__device__ __forceinline__ __nv_bfloat16 to_stored(float x) {
    return __float2bfloat16_rn(x);
}
template <>
__device__ __forceinline__ __half to_stored(float x) {
    return __float2half_rn(x);
}
template <>
__device__ __forceinline__ E4M3 to_stored(float x) {
    return E4M3{__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E4M3)};
}
template <>
__device__ __forceinline__ E5M2 to_stored(float x) {
    return E5M2{__nv_cvt_float_to_fp8(x, __NV_SATFINITE, __NV_E5M2)};
}

template <typename T, int WIDTH>
__device__ __forceinline__ void rotate(const WriteParams &p, Vector<T, WIDTH> (&x)[2], int token, int group) {
    const int position = reinterpret_cast<const int *>(p.positions)[token];
    const float *cos = reinterpret_cast<const float *>(p.cos_sin) + int64_t(position) * p.rotary_dim;
    const float *sin = cos + p.rotary_dim / 2;
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        // Interleaved pairs are neighbours among the 2 * WIDTH elements.
        T &first = p.is_interleaved ? x[2 * i / WIDTH].at[2 * i % WIDTH] : x[0].at[i];
        T &second = p.is_interleaved ? x[(2 * i + 1) / WIDTH].at[(2 * i + 1) % WIDTH] : x[1].at[i];
        const float c = __ldg(cos + group * WIDTH + i), s = __ldg(sin + group * WIDTH + i);
        const float a = float(first), b = float(second);
        first = T(a * c - b * s);
        second = T(b * c + a * s);
    }
}

template <typename T, typename S, int WIDTH>
__device__ __forceinline__ void write(const WriteParams &p) {
    using Loaded = Vector<T, WIDTH>;
    const int groups = p.head_dim / (2 * WIDTH);
    const int heads = p.num_heads + 2 * p.num_kv_heads;
    const int index = blockIdx.x * blockDim.x + threadIdx.x;
    if (index >= p.num_tokens * heads * groups) return;
    const int group = index % groups, head = index / groups % heads, token = index / groups / heads;
    const bool is_q = head < p.num_heads, is_v = head >= p.num_heads + p.num_kv_heads;
    const bool is_rotated = !is_v && group * 2 * WIDTH < p.rotary_dim;
    const bool is_apart = is_rotated && !p.is_interleaved;
    const int first = is_apart ? group * WIDTH : group * 2 * WIDTH;
    const int second = is_apart ? first + p.rotary_dim / 2 : first + WIDTH;

    const int of_part = is_q ? head : is_v ? head - p.num_heads - p.num_kv_heads : head - p.num_heads;
    T *part = reinterpret_cast<T *>(is_q ? p.q : is_v ? p.v : p.k);
    const int stride = is_q ? p.q_stride : is_v ? p.v_stride : p.k_stride;
    T *from = part + int64_t(token) * stride + of_part * p.head_dim;
    Loaded x[2] = {*reinterpret_cast<Loaded *>(from + first), *reinterpret_cast<Loaded *>(from + second)};
    if (is_rotated) {
        rotate<T, WIDTH>(p, x, token, group);
        *reinterpret_cast<Loaded *>(from + first) = x[0];
        *reinterpret_cast<Loaded *>(from + second) = x[1];
    }
    if (is_q) return;
    const int slot = reinterpret_cast<const int *>(p.slots)[token];
    if (slot < 0) return;
    const int offset = slot & ((1 << p.block_shift) - 1);
    S *block = reinterpret_cast<S *>(p.blocks + (slot >> p.block_shift) * p.block_bytes);
    const int of_block = of_part + (is_v ? p.num_kv_heads : 0);
    S *to = block + ((int64_t(of_block) << p.block_shift) + offset) * p.head_dim;
    // Other caches have scales of 1.
    const float scale = sizeof(S) == 1 ? (is_v ? p.v_scale : p.k_scale) : 1.0f;
    Vector<S, WIDTH> stored[2];
#pragma unroll
    for (int i = 0; i < WIDTH; ++i) {
        stored[0].at[i] = to_stored<S>(__fdiv_rn(float(x[0].at[i]), scale));
        stored[1].at[i] = to_stored<S>(__fdiv_rn(float(x[1].at[i]), scale));
    }
    *reinterpret_cast<Vector<S, WIDTH> *>(to + first) = stored[0];
    *reinterpret_cast<Vector<S, WIDTH> *>(to + second) = stored[1];
}

}  // namespace attention

// `_wide` where head_dim and rotary_dim are multiples of 16 and everything is aligned to 16 bytes.
#define ATTENTION_WRITE(NAME, T, S, WIDTH)                                                                          \
    extern "C" __global__ void __launch_bounds__(128) NAME(const __grid_constant__ attention::WriteParams p) {      \
        attention::wait_for_previous();                                                                      \
        attention::let_next_start();                                                                         \
        attention::write<T, S, WIDTH>(p);                                                                           \
    }
#define ATTENTION_WRITE_WIDTHS(SUFFIX, T, S)                    \
    ATTENTION_WRITE(attention_write_##SUFFIX##_wide, T, S, 8)   \
    ATTENTION_WRITE(attention_write_##SUFFIX##_narrow, T, S, 1)

ATTENTION_WRITE_WIDTHS(bf16_bf16, __nv_bfloat16, __nv_bfloat16)
ATTENTION_WRITE_WIDTHS(bf16_fp8_e4m3, __nv_bfloat16, attention::E4M3)
ATTENTION_WRITE_WIDTHS(bf16_fp8_e5m2, __nv_bfloat16, attention::E5M2)
ATTENTION_WRITE_WIDTHS(f16_f16, __half, __half)
ATTENTION_WRITE_WIDTHS(f16_fp8_e4m3, __half, attention::E4M3)
ATTENTION_WRITE_WIDTHS(f16_fp8_e5m2, __half, attention::E5M2)
