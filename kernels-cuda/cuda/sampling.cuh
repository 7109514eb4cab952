// What the kernels of the sampler share: keys that order logits, the noise of a draw, the two levels by which a row
// is summed up, reductions of a block.
#pragma once

#include "common.cuh"

namespace quire {

using u64 = unsigned long long;

// A row is cut into segments of 4096 tokens, whatever the number of rows: so a row's result never depends on the
// others. A segment is one block of 256 threads, four lanes of which see one of its 64 groups:
//
//     token = 4096 * segment + 1024 * r + 16 * quad + (0..15),  r in 0..4     group = 64 * segment + quad
constexpr int SEGMENT = 4096;
constexpr int SCAN_THREADS = 256;
constexpr int RUNS = SEGMENT / (4 * SCAN_THREADS);
constexpr int VALUES = 4 * RUNS;
constexpr int GROUPS = SCAN_THREADS / 4;

// Threads of the block that finishes a row.
constexpr int PICK_THREADS = 512;
constexpr int PICK_WARPS = PICK_THREADS / 32;

// Weights are summed as integers, so that no sum depends on an order.
constexpr float FIXED_ONE = 2147483648.0f;  // 2^31

constexpr uint32_t NO_TOKEN = 0xffffffffu;

// Unsigned integers in the order of the floats.
__device__ __forceinline__ uint32_t key_of(float x) {
    const uint32_t bits = __float_as_uint(x);
    return bits & 0x80000000u ? ~bits : bits | 0x80000000u;
}

__device__ __forceinline__ float of_key(uint32_t key) {
    return __uint_as_float(key & 0x80000000u ? key & 0x7fffffffu : ~key);
}

constexpr uint32_t KEY_OF_NOTHING = 0x007fffffu;   // key_of(-inf)
constexpr uint32_t KEY_OF_INFINITY = 0xff800000u;  // key_of(+inf)

__device__ __forceinline__ u64 key_of(double x) {
    const u64 bits = __double_as_longlong(x);
    return bits >> 63 ? ~bits : bits | 0x8000000000000000ull;
}

// A logit as it counts: NaN as -inf, -0 as 0 (so that equal logits have equal keys).
__device__ __forceinline__ float number(float logit) { return fmaxf(logit, -INFINITY) + 0.0f; }

// What a NaN counts as.
enum class Nan { LEAST, BEST };

// Who draws (`random.rs`).
struct DrawKey {
    uint32_t seed_low, seed_high, sequence, position;
};

// The first word of Philox4x32-10 (Salmon et al., 2011).
__device__ __forceinline__ uint32_t random_bits(const DrawKey& key, uint32_t token) {
    uint32_t c0 = key.sequence, c1 = key.position, c2 = token, c3 = 0;
    uint32_t k0 = key.seed_low, k1 = key.seed_high;
#pragma unroll
    for (int round = 0; round < 10; round++) {
        const u64 p0 = (u64)0xD2511F53u * c0, p1 = (u64)0xCD9E8D57u * c2;
        c0 = (uint32_t)(p1 >> 32) ^ c1 ^ k0;
        c1 = (uint32_t)p1;
        c2 = (uint32_t)(p0 >> 32) ^ c3 ^ k1;
        c3 = (uint32_t)p0;
        k0 += 0x9E3779B9u;
        k1 += 0xBB67AE85u;
    }
    return c0;
}

// Gumbel noise by the definition: two logarithms in f64.
__device__ __noinline__ float gumbel(uint32_t bits) {
    const double u = ((double)bits + 0.5) * (1.0 / 4294967296.0);
    return (float)-log(-log(u));
}

// The same to about 1e-4, in f32. Near u = 1 the logarithm is taken from 1 - u, which is exact.
__device__ __forceinline__ float gumbel_about(uint32_t bits) {
    const float rest = ((float)~bits + 0.5f) * 2.3283064365386963e-10f;
    const float u = ((float)bits + 0.5f) * 2.3283064365386963e-10f;
    const float series = rest * (1.0f + rest * (0.5f + rest * (0.33333334f + rest * 0.25f)));
    return -__logf(rest < 0.015625f ? series : -__logf(u));
}

// All that `gumbel_about` and products in f32 may be off by, several times over.
constexpr float SLACK = 2e-3f;

constexpr float LOG2_E = 1.4426950408889634f;

// The parameters of a row.
struct Row {
    float temperature, top_p, min_p;
    int top_k;

    __device__ __forceinline__ bool is_greedy() const { return !(temperature > 0.0f); }
    __device__ __forceinline__ bool has_top_k(int vocab_size) const { return top_k >= 1 && top_k < vocab_size; }
    __device__ __forceinline__ bool has_top_p() const { return top_p < 1.0f; }
    __device__ __forceinline__ bool has_min_p() const { return min_p > 0.0f; }
    __device__ __forceinline__ bool has_filter(int vocab_size) const {
        return has_top_k(vocab_size) || has_top_p() || has_min_p();
    }
    // Whether a top-p is measured against all tokens.
    __device__ __forceinline__ bool has_only_top_p(int vocab_size) const {
        return has_top_p() && !has_top_k(vocab_size) && !has_min_p();
    }
};

// 1 / temperature, times `unit`; finite, so that 0 times it is 0.
__device__ __forceinline__ float inverse(float temperature, float unit) { return fminf(unit / temperature, 3e38f); }

// exp((logit - best) / temperature), `rate` being LOG2_E / temperature.
__device__ __forceinline__ float weight(float logit, float best, float rate) {
    float result;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(result) : "f"(fminf(logit - best, 0.0f) * rate));
    return result;
}

__device__ __forceinline__ uint32_t fixed(float weight) { return __float2uint_rn(weight * FIXED_ONE); }

// (logit - best) / temperature, as the definition has it.
__device__ __forceinline__ double exponent_of(float logit, float best, float temperature) {
    return logit == best ? 0.0 : ((double)logit - (double)best) / (double)temperature;
}

// The same in f32, `rate` being the inverse temperature. (Infinity minus itself is NaN, of which 0 is the minimum.)
__device__ __forceinline__ float exponent_about(float logit, float best, float rate) {
    return fminf(logit - best, 0.0f) * rate;
}

// Whether the score of a token may reach `bound`, by its random bits. The noise is at most -ln(1 - u), so it takes
// 1 - u <= exp(exponent - bound); both sides plus 1, to 23 bits, rounded in favour of the token.
__device__ __forceinline__ bool may_reach(float exponent, float bound, uint32_t bits) {
    float most;
    asm("ex2.approx.ftz.f32 %0, %1;" : "=f"(most) : "f"((exponent - bound) * LOG2_E));
    return __uint_as_float(0x3f800000u | ~bits >> 9) <= __fadd_ru(1.0f, most);
}

// The token of a thread with the best score so far, and how close another one came.
struct Contender {
    float score = -INFINITY, second = -INFINITY, logit = 0.0f;
    uint32_t token = NO_TOKEN;

    // A score that what is drawn reaches, as far as the warp knows.
    __device__ __forceinline__ float bound() const {
        return of_key(__reduce_max_sync(ALL_LANES, key_of(score))) - SLACK;
    }

    __device__ __forceinline__ void offer(float other_score, float other_logit, uint32_t other_token) {
        second = fmaxf(second, fminf(score, other_score));
        if (other_score > score) {
            score = other_score;
            logit = other_logit;
            token = other_token;
        }
    }

    // Four tokens, `stride` apart; those that cannot reach `bound` are passed over. Minus infinity is no offer.
    __device__ __forceinline__ void offer_four(const float* logits, uint32_t first, uint32_t stride, float best,
                                               float rate, const DrawKey& key, float bound) {
        uint32_t bits[4];
        float exponents[4];
        bool may[4];
#pragma unroll
        for (int i = 0; i < 4; i++) {
            bits[i] = random_bits(key, first + i * stride);
            exponents[i] = exponent_about(logits[i], best, rate);
            may[i] = may_reach(exponents[i], bound, bits[i]);
        }
        if (!(may[0] || may[1] || may[2] || may[3])) return;
#pragma unroll
        for (int i = 0; i < 4; i++) {
            if (may[i]) offer(exponents[i] + gumbel_about(bits[i]), logits[i], first + i * stride);
        }
    }
};

// What a draw maximizes.
__device__ __forceinline__ double score_of(float logit, float best, float temperature, const DrawKey& key,
                                           uint32_t token) {
    return exponent_of(logit, best, temperature) + (double)gumbel(random_bits(key, token));
}

// A drawn token: the higher score, then the lower id.
struct Drawn {
    u64 score;
    uint32_t token;

    __device__ __forceinline__ void take(u64 other_score, uint32_t other_token) {
        if (other_score > score || (other_score == score && other_token < token)) {
            score = other_score;
            token = other_token;
        }
    }
};

__device__ __forceinline__ Drawn warp_best(Drawn drawn) {
    const uint32_t high = __reduce_max_sync(ALL_LANES, (uint32_t)(drawn.score >> 32));
    const bool is_high = (uint32_t)(drawn.score >> 32) == high;
    const uint32_t low = __reduce_max_sync(ALL_LANES, is_high ? (uint32_t)drawn.score : 0);
    const bool is_best = is_high && (uint32_t)drawn.score == low;
    return {(u64)high << 32 | low, __reduce_min_sync(ALL_LANES, is_best ? drawn.token : NO_TOKEN)};
}

// The best of a block, known to its first warp.
template <int WARPS> __device__ __forceinline__ Drawn block_best(Drawn drawn, Drawn* scratch) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    drawn = warp_best(drawn);
    if (lane == 0) scratch[warp] = drawn;
    __syncthreads();
    if (warp != 0) return drawn;
    return warp_best(lane < WARPS ? scratch[lane] : Drawn{0, NO_TOKEN});
}

// The best token that has been seen, in one word: the larger, the better.
__device__ __forceinline__ u64 ranked(uint32_t key, uint32_t token) { return (u64)key << 32 | (uint32_t)~token; }
__device__ __forceinline__ uint32_t key_in(u64 ranked) { return (uint32_t)(ranked >> 32); }
__device__ __forceinline__ uint32_t token_in(u64 ranked) { return ~(uint32_t)ranked; }

__device__ __forceinline__ u64 warp_best_ranked(uint32_t key, uint32_t token) {
    const uint32_t best = __reduce_max_sync(ALL_LANES, key);
    const uint32_t first = __reduce_min_sync(ALL_LANES, key == best ? token : NO_TOKEN);
    return ranked(best, first);
}

// The values of a thread in its segment.
struct Segment {
    float values[VALUES];
    uint32_t first;  // the token of values[0]

    __device__ __forceinline__ uint32_t token(int i) const { return first + i / 4 * (4 * SCAN_THREADS) + i % 4; }

    __device__ __forceinline__ void load(const float* row, uint32_t segment, uint32_t vocab_size) {
        first = segment * SEGMENT + threadIdx.x * 4;
        const bool is_vector = ((uintptr_t)row & 15) == 0;
#pragma unroll
        for (int r = 0; r < RUNS; r++) {
            const uint32_t at = token(4 * r);
            float* v = values + 4 * r;
            if (is_vector && at + 4 <= vocab_size) {
                const float4 quad = *reinterpret_cast<const float4*>(row + at);
                v[0] = quad.x, v[1] = quad.y, v[2] = quad.z, v[3] = quad.w;
            } else {
#pragma unroll
                for (int i = 0; i < 4; i++) v[i] = at + i < vocab_size ? row[at + i] : -INFINITY;
            }
        }
    }

    // The largest value; a NaN becomes the least one, or the best, which no sound row has.
    template <Nan NAN_IS> __device__ __forceinline__ float clean() {
        float best = -INFINITY;
#pragma unroll
        for (int i = 0; i < VALUES; i++) {
            const bool is_best = NAN_IS == Nan::BEST && isnan(values[i]);
            values[i] = is_best ? INFINITY : number(values[i]);
            best = fmaxf(best, values[i]);
        }
        return best;
    }

    __device__ __forceinline__ uint32_t first_equal(float best) const {
        uint32_t found = NO_TOKEN;
#pragma unroll
        for (int i = VALUES - 1; i >= 0; i--) {
            if (values[i] == best) found = token(i);
        }
        return found;
    }

    // The best token of the block's segment, known to all threads; `scratch` holds a word a warp.
    __device__ __forceinline__ u64 block_best(float thread_best, u64* scratch) const {
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        const uint32_t key = key_of(thread_best), best = __reduce_max_sync(ALL_LANES, key);
        const uint32_t token = key == best ? first_equal(thread_best) : NO_TOKEN;
        const uint32_t first = __reduce_min_sync(ALL_LANES, token);
        if (lane == 0) scratch[warp] = ranked(best, first);
        __syncthreads();
        const u64 other = scratch[lane & (SCAN_THREADS / 32 - 1)];
        return warp_best_ranked(key_in(other), token_in(other));
    }

    // The largest value of each group, and the sum of its weights relative to it.
    __device__ __forceinline__ void store_groups(float thread_best, float rate, bool wants_sum, uint32_t* keys,
                                                 float* sums) const {
        float best = thread_best;
        best = fmaxf(best, __shfl_xor_sync(ALL_LANES, best, 1));
        best = fmaxf(best, __shfl_xor_sync(ALL_LANES, best, 2));
        const uint32_t group = blockIdx.x * GROUPS + threadIdx.x / 4;
        if (threadIdx.x % 4 == 0) keys[group] = key_of(best);
        if (!wants_sum) return;
        float sum = 0.0f;
#pragma unroll
        for (int i = 0; i < VALUES; i++) sum += weight(values[i], best, rate);
        sum += __shfl_xor_sync(ALL_LANES, sum, 1);
        sum += __shfl_xor_sync(ALL_LANES, sum, 2);
        if (threadIdx.x % 4 == 0) sums[group] = best == -INFINITY ? 0.0f : sum;
    }
};

// The best of a row from its segments, computed by every warp for itself.
__device__ __forceinline__ u64 best_of_row(const u64* segments, uint32_t num_segments) {
    u64 best = 0;
    for (uint32_t i = threadIdx.x & 31; i < num_segments; i += 32) best = max(best, segments[i]);
    return warp_best_ranked(key_in(best), token_in(best));
}

}  // namespace quire
