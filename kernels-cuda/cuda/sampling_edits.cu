// What is done to logits and tokens around a draw. 256 threads each.
//
// add_bias: logits[edits[i].row, edits[i].token] += values[i]; edits: [n, 2] i32, -1 is padding. Two edits of one token
//   add up in no fixed order. grid = ceil(n / 256)
// mask: logits: [rows, vocab_size] f32; slots: [rows] i32, -1 is padding; masks: [slots, words] u32, a bit a token. Nothing
//   is read of the logits: a warp takes 32 tokens at a time and writes -inf where their word has no bit.
//   grid = (ceil(vocab_size / 2048), rows)
// penalize: logits: [rows, vocab_size] f32; slots: [rows] i32, -1 is padding; counts: [slots, vocab_size] i32. Only the
//   logits of tokens that have a count are read. grid = (ceil(vocab_size / 2048), rows)
// count: counts[slots[i], tokens[i]] += 1; -1 in either skips, as does what is no token. grid = ceil(n / 256)
// scatter: dst[dst_idx[i]] = max(src[src_idx[i]], 0); -1 in either index skips. grid = ceil(n / 256)

#include "common.cuh"

namespace quire {

struct AddBiasParams {
    uint64_t logits, edits, values;
    int64_t logits_stride;
    uint32_t num_edits, unused;
};

struct MaskParams {
    uint64_t logits, slots, masks;
    int64_t logits_stride, masks_stride;
    uint32_t vocab_size, unused;
};

struct PenalizeParams {
    uint64_t logits, slots, presence, frequency, repetition, counts;
    int64_t logits_stride, counts_stride;
    uint32_t vocab_size, unused;
};

struct CountParams {
    uint64_t slots, tokens, counts;
    int64_t counts_stride;
    uint32_t num_rows, vocab_size;
};

struct ScatterParams {
    uint64_t src, src_idx, dst, dst_idx;
    uint32_t num_indices, unused;
};

constexpr int IN_OUTPUT = (1 << 30) - 1;
constexpr int TOKENS_PER_THREAD = 8;

struct Penalties {
    float presence, frequency, repetition;

    __device__ __forceinline__ bool are_off() const {
        return presence == 0.0f && frequency == 0.0f && repetition == 1.0f;
    }

    __device__ __forceinline__ float apply(float logit, int count) const {
        const float repeated = logit > 0.0f ? logit / repetition : logit * repetition;
        const int in_output = count & IN_OUTPUT;
        return in_output == 0 ? repeated : repeated - (frequency * (float)in_output + presence);
    }
};

}  // namespace quire

using namespace quire;

extern "C" __global__ void __launch_bounds__(256) add_bias(const __grid_constant__ AddBiasParams p) {
    let_next_start();
    wait_for_previous();
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.num_edits) return;
    const int2 edit = reinterpret_cast<const int2*>(p.edits)[i];
    if (edit.x < 0 || edit.y < 0) return;
    float* logit = reinterpret_cast<float*>(p.logits) + edit.x * p.logits_stride + edit.y;
    atomicAdd(logit, reinterpret_cast<const float*>(p.values)[i]);
}

extern "C" __global__ void __launch_bounds__(256) mask(const __grid_constant__ MaskParams p) {
    let_next_start();
    wait_for_previous();
    const int row = blockIdx.y;
    const int slot = reinterpret_cast<const int*>(p.slots)[row];
    if (slot < 0) return;
    const uint32_t* words = reinterpret_cast<const uint32_t*>(p.masks) + slot * p.masks_stride;
    float* logits = reinterpret_cast<float*>(p.logits) + row * p.logits_stride;
    const uint32_t first = blockIdx.x * (256 * TOKENS_PER_THREAD) + threadIdx.x;
    uint32_t held[TOKENS_PER_THREAD];
#pragma unroll
    for (int i = 0; i < TOKENS_PER_THREAD; i++) {
        const uint32_t token = first + i * 256;
        held[i] = token < p.vocab_size ? words[token / 32] : 0xffffffffu;
    }
#pragma unroll
    for (int i = 0; i < TOKENS_PER_THREAD; i++) {
        const uint32_t token = first + i * 256;
        if (!(held[i] >> (token % 32) & 1)) logits[token] = __int_as_float(0xff800000);
    }
}

extern "C" __global__ void __launch_bounds__(256) penalize(const __grid_constant__ PenalizeParams p) {
    let_next_start();
    wait_for_previous();
    const int row = blockIdx.y;
    const int slot = reinterpret_cast<const int*>(p.slots)[row];
    if (slot < 0) return;
    const Penalties penalties{reinterpret_cast<const float*>(p.presence)[slot],
                              reinterpret_cast<const float*>(p.frequency)[slot],
                              reinterpret_cast<const float*>(p.repetition)[slot]};
    if (penalties.are_off()) return;
    const int* counts = reinterpret_cast<const int*>(p.counts) + slot * p.counts_stride;
    float* logits = reinterpret_cast<float*>(p.logits) + row * p.logits_stride;
    const uint32_t first = blockIdx.x * (256 * TOKENS_PER_THREAD) + threadIdx.x;
    int held[TOKENS_PER_THREAD];
#pragma unroll
    for (int i = 0; i < TOKENS_PER_THREAD; i++) {
        const uint32_t token = first + i * 256;
        held[i] = token < p.vocab_size ? counts[token] : 0;
    }
#pragma unroll
    for (int i = 0; i < TOKENS_PER_THREAD; i++) {
        if (held[i] == 0) continue;
        float* logit = logits + first + i * 256;
        *logit = penalties.apply(*logit, held[i]);
    }
}

extern "C" __global__ void __launch_bounds__(256) count(const __grid_constant__ CountParams p) {
    let_next_start();
    wait_for_previous();
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.num_rows) return;
    const int slot = reinterpret_cast<const int*>(p.slots)[i], token = reinterpret_cast<const int*>(p.tokens)[i];
    if (slot < 0 || token < 0 || (uint32_t)token >= p.vocab_size) return;
    atomicAdd(reinterpret_cast<int*>(p.counts) + slot * p.counts_stride + token, 1);
}

extern "C" __global__ void __launch_bounds__(256) scatter(const __grid_constant__ ScatterParams p) {
    let_next_start();
    wait_for_previous();
    const uint32_t i = blockIdx.x * blockDim.x + threadIdx.x;
    if (i >= p.num_indices) return;
    const int from = reinterpret_cast<const int*>(p.src_idx)[i], to = reinterpret_cast<const int*>(p.dst_idx)[i];
    if (from < 0 || to < 0) return;
    reinterpret_cast<int*>(p.dst)[to] = max(reinterpret_cast<const int*>(p.src)[from], 0);
}
