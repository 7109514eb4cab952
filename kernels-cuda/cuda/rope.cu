// Rotary position embedding, in place.
//
// rope  (bf16, f16)
//   x: [num_tokens, num_heads * head_dim], row stride in elements; positions: [num_tokens] i32;
//   table: [max_positions, rotary_dim] f32, the cosines of a position and then its sines.
//   `halves`: element i turns with i + rotary_dim / 2; else 2i with 2i + 1.
//   An item is 8 pairs (halves) or 4 pairs (interleaved) of one head where all is 16-byte aligned, else one pair.
//   256 threads, grid = ceil(num_tokens * num_heads * items a head / 256)

// hot: rope_*
// hot: rope_*
#include "common.cuh"

namespace quire {

struct RopeParams {
    uint64_t x, positions, table;
    int64_t x_stride, table_stride;
    uint32_t num_tokens, num_heads, head_dim, rotary_dim;
    uint32_t halves, is_vector, items_per_head, unused;
};

__device__ __forceinline__ void turn(float& a, float& b, float cosine, float sine) {
    const float x = a, y = b;
    a = x * cosine - y * sine;
    b = x * sine + y * cosine;
}

template <typename T> __device__ __forceinline__ void turn_pair(T* a, T* b, float cosine, float sine) {
    float x = to_f32(*a), y = to_f32(*b);
    turn(x, y, cosine, sine);
    *a = from_f32<T>(x);
    *b = from_f32<T>(y);
}

template <typename T>
__device__ __forceinline__ void turn_halves(T* head, const float* cosines, const float* sines, int half, int item) {
    float a[8], b[8];
    load8(head + item * 8, a);
    load8(head + half + item * 8, b);
#pragma unroll
    for (int q = 0; q < 2; q++) {
        const float4 c = __ldg(reinterpret_cast<const float4*>(cosines + item * 8) + q);
        const float4 s = __ldg(reinterpret_cast<const float4*>(sines + item * 8) + q);
        turn(a[4 * q], b[4 * q], c.x, s.x);
        turn(a[4 * q + 1], b[4 * q + 1], c.y, s.y);
        turn(a[4 * q + 2], b[4 * q + 2], c.z, s.z);
        turn(a[4 * q + 3], b[4 * q + 3], c.w, s.w);
    }
    store8(head + item * 8, a);
    store8(head + half + item * 8, b);
}

template <typename T>
__device__ __forceinline__ void turn_neighbours(T* head, const float* cosines, const float* sines, int item) {
    float a[8];
    load8(head + item * 8, a);
    const float4 c = __ldg(reinterpret_cast<const float4*>(cosines) + item);
    const float4 s = __ldg(reinterpret_cast<const float4*>(sines) + item);
    turn(a[0], a[1], c.x, s.x);
    turn(a[2], a[3], c.y, s.y);
    turn(a[4], a[5], c.z, s.z);
    turn(a[6], a[7], c.w, s.w);
    store8(head + item * 8, a);
}

template <typename T> __device__ __forceinline__ void rope(const RopeParams& p) {
    let_next_start();
    wait_for_previous();
    const uint32_t per_token = p.num_heads * p.items_per_head;
    const uint32_t index = blockIdx.x * blockDim.x + threadIdx.x, token = index / per_token;
    if (token >= p.num_tokens) return;
    const uint32_t within = index - token * per_token;
    const uint32_t head_idx = within / p.items_per_head, item = within - head_idx * p.items_per_head;
    const int64_t position = reinterpret_cast<const int32_t*>(p.positions)[token];
    const int half = p.rotary_dim / 2;
    const float* cosines = reinterpret_cast<const float*>(p.table) + position * p.table_stride;
    const float* sines = cosines + half;
    T* head = reinterpret_cast<T*>(p.x) + token * p.x_stride + (int64_t)head_idx * p.head_dim;
    if (!p.is_vector) {
        T* a = p.halves ? head + item : head + 2 * item;
        turn_pair(a, p.halves ? a + half : a + 1, cosines[item], sines[item]);
    } else if (p.halves) {
        turn_halves(head, cosines, sines, half, item);
    } else {
        turn_neighbours(head, cosines, sines, item);
    }
}

}  // namespace quire

using namespace quire;

extern "C" __global__ void __launch_bounds__(256) rope_bf16(const __grid_constant__ RopeParams p) {
    rope<bf16>(p);
}

extern "C" __global__ void __launch_bounds__(256) rope_f16(const __grid_constant__ RopeParams p) { rope<f16>(p); }
