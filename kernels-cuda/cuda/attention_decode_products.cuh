// Decode attention: scores, softmax and weighted values of one warp.
#pragma once

#include "attention_decode_shape.cuh"

namespace attention {

// The query heads of a tile as left operands; rows beyond the group are zero.
template <typename T, typename S, int HD>
__device__ __forceinline__ void load_queries(uint32_t (&a)[HD / 16][4], const T *q, int num_heads) {
    using D = Decode<T, S, HD>;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int k = 0; k < HD / 16; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int head = g + (i % 2) * 8;
            const int dim = k * 16 + (D::IS_FP8 ? c * 4 + (i / 2) * 2 : c * 2 + (i / 2) * 8);
            uint32_t pair = 0;
            if (head < num_heads) pair = *reinterpret_cast<const uint32_t *>(q + head * HD + dim);
            a[k][i] = convert2<T, typename D::M>(pair);
        }
    }
}

// s = q k^T for the warp's 16 keys.
template <typename T, typename S, int HD>
__device__ __forceinline__ void score(float (&s)[2][4], const uint32_t (&q)[HD / 16][4], uint32_t keys) {
    using D = Decode<T, S, HD>;
    using M = typename D::M;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) s[0][i] = s[1][i] = 0.0f;
    if constexpr (D::IS_FP8) {
        // A lane's four neighbouring bytes of a key are its share of the right operand of one step: the queries were
        // loaded in the same order.
#pragma unroll
        for (int k = 0; k < D::K_STEPS; k += 2) {
            const int last = D::K_STEPS - 1;
            const int step = min(k + lane / 16, last);
            uint32_t four[4];
            load_matrices(four, keys + D::place(lane / 8 % 2 * 8 + lane % 8, step * 16));
#pragma unroll
            for (int i = 0; i < (k < last ? 4 : 2); ++i) {
                Half<M>::mma(s[i % 2], q[k + i / 2], fp8x2_to_half2<S>(four[i]), fp8x2_to_half2<S>(four[i] >> 16));
            }
        }
    } else {
#pragma unroll
        for (int k = 0; k < D::K_STEPS; ++k) {
            uint32_t b[4];
            load_matrices(b, keys + D::place(lane / 16 * 8 + lane % 8, k * 32 + lane / 8 % 2 * 16));
            Half<M>::mma(s[0], q[k], b[0], b[1]);
            Half<M>::mma(s[1], q[k], b[2], b[3]);
        }
    }
}

// o += weights times the warp's 16 values.
template <typename T, typename S, int HD>
__device__ __forceinline__ void weigh(float (&o)[HD / 8][4], const uint32_t (&weights)[4], uint32_t values) {
    using D = Decode<T, S, HD>;
    using M = typename D::M;
    const int lane = threadIdx.x % 32;
    if constexpr (D::IS_FP8) {
        // Two neighbouring elements of two keys come together; they go to two tiles, an even element to the first.
#pragma unroll
        for (int start = 0; start < HD; start += 32) {
            uint32_t pairs[4];
            const int byte = min(start + lane / 16 * 16, HD - 16);
            load_matrices_transposed(pairs, values + D::place(lane / 8 % 2 * 8 + lane % 8, byte));
#pragma unroll
            for (int half = 0; half < (start + 32 <= HD ? 2 : 1); ++half) {
                const uint32_t low = __byte_perm(pairs[2 * half], 0, 0x3120);
                const uint32_t high = __byte_perm(pairs[2 * half + 1], 0, 0x3120);
                const int tile = start / 8 + half * 2;
                Half<M>::mma(o[tile], weights, fp8x2_to_half2<S>(low), fp8x2_to_half2<S>(high));
                Half<M>::mma(o[tile + 1], weights, fp8x2_to_half2<S>(low >> 16), fp8x2_to_half2<S>(high >> 16));
            }
        }
    } else {
#pragma unroll
        for (int tile = 0; tile < D::N_TILES; tile += 2) {
            uint32_t b[4];
            load_matrices_transposed(b, values + D::place(lane / 8 % 2 * 8 + lane % 8, tile * 16 + lane / 16 * 16));
            Half<M>::mma(o[tile], weights, b[0], b[1]);
            Half<M>::mma(o[tile + 1], weights, b[2], b[3]);
        }
    }
}

// Maximum and sum of the softmax of the two rows that a thread holds, and the weighted values.
template <int HD>
struct Softmax {
    float maximum[2] = {-CUDART_INF_F, -CUDART_INF_F};
    float sum[2] = {0.0f, 0.0f};  // Of this thread's columns.
    float o[HD / 8][4] = {};

    // Takes in the scores of 16 keys, the first at `key`; gives their weights as a left operand.
    template <typename M>
    __device__ __forceinline__ void add(uint32_t (&weights)[4], float (&s)[2][4], float scale_log2, int key, int low,
                                        int end) {
        const int c = threadIdx.x % 4;
        const bool is_cut = key < low || key + WARP_KEYS > end;
        float correction[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = key + n * 8 + c * 2 + i % 2;
                s[n][i] = is_cut && (at < low || at >= end) ? -CUDART_INF_F : s[n][i] * scale_log2;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float largest = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            const float next = fmaxf(maximum[r], largest);
            const float base = next == -CUDART_INF_F ? 0.0f : next;
            correction[r] = fast_exp2(maximum[r] - base);
            maximum[r] = next;
            float added = 0.0f;
#pragma unroll
            for (int n = 0; n < 2; ++n) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float &weight = s[n][2 * r + i];
                    weight = fast_exp2(weight - base);
                    added += weight;
                }
            }
            sum[r] = sum[r] * correction[r] + added;
        }
        if (__any_sync(0xffffffffu, correction[0] != 1.0f || correction[1] != 1.0f)) rescale(correction);
#pragma unroll
        for (int i = 0; i < 4; ++i) weights[i] = Half<M>::pack(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
    }

    __device__ __forceinline__ void rescale(const float (&factor)[2]) {
#pragma unroll
        for (int tile = 0; tile < HD / 8; ++tile) {
#pragma unroll
            for (int i = 0; i < 4; ++i) o[tile][i] *= factor[i / 2];
        }
    }
};

}  // namespace attention
