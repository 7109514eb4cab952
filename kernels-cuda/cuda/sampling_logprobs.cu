// Log-probabilities of chosen tokens and of the best ones, by the two levels of the sampler (`sampling.cuh`).
//
// logprobs_scan: grid = (segments, rows), 256 threads. The best token of each segment, the mass of each group, and how
//   many tokens of the segment have a logit at least the chosen one's.
// logprobs_pick: grid = rows, 512 threads. The row's mass, its best tokens, and what is written.
//
// logits: [rows, vocab_size] f32; chosen: [rows] i32, -1: none; token_ids, logprobs: [rows, 1 + num_top] i32 and f32 with
// row strides (logits in place of log-probabilities where wants_logits is not 0); ranks: [rows] i32. num_top is at most MAX_CANDIDATES and vocab_size. Scratch: segments [rows, segments]
// u64, at_least the same u32; group_keys [rows, segments * 64] u32, group_sums the same f32.

// hot: logprobs_scan
#include "sampling_select.cuh"

namespace quire {

struct LogprobsParams {
    u64 logits, chosen, token_ids, logprobs, ranks;
    u64 segments, at_least, group_keys, group_sums;
    int64_t logits_stride, token_ids_stride, logprobs_stride;
    uint32_t vocab_size, num_segments, num_top, wants_logits;
};

__device__ __forceinline__ bool is_token(int token, uint32_t vocab_size) {
    return token >= 0 && (uint32_t)token < vocab_size;
}

// Leaves the best `num_top` tokens above -inf, or all where there are fewer, as sorted candidates.
__device__ __forceinline__ void select_best(const GroupsOfRow& groups, const LogitsRow& row, uint32_t num_top, SelectShared& shared,
                            int& turn) {
    const auto one = [](uint32_t) { return 1u; };
    const uint32_t low = bound_by_groups(groups, num_top, one, shared, turn);
    if (!gather(groups, row, low, shared)) {
        __syncthreads();
        const Cut cut = cut_by_histogram<false>(row, low, num_top, true, shared, turn);
        if (threadIdx.x == 0) shared.num_candidates = 0;
        __syncthreads();
        for_each_token(row, [&](uint32_t token, float logit) {
            if (!cut.keeps(key_of(logit), token)) return;
            shared.candidates[atomicAdd(&shared.num_candidates, 1)] = ranked(key_of(logit), token);
        });
        __syncthreads();
    }
    sort_candidates(shared);
}

}  // namespace quire

using namespace quire;

extern "C" __global__ void __launch_bounds__(SCAN_THREADS) logprobs_scan(const __grid_constant__ LogprobsParams p) {
    __shared__ u64 scratch[SCAN_THREADS / 32];
    __shared__ uint32_t counts[SCAN_THREADS / 32];
    let_next_start();
    wait_for_previous();
    const int row_idx = blockIdx.y, lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const float* logits = reinterpret_cast<const float*>(p.logits) + row_idx * p.logits_stride;
    Segment segment;
    segment.load(logits, blockIdx.x, p.vocab_size);
    const int chosen = reinterpret_cast<const int*>(p.chosen)[row_idx];
    const float bound = is_token(chosen, p.vocab_size) ? number(logits[chosen]) : INFINITY;
    const float thread_best = segment.clean<Nan::LEAST>();
    uint32_t count = 0;
#pragma unroll
    for (int i = 0; i < VALUES; i++) count += segment.values[i] >= bound && segment.token(i) < p.vocab_size;
    count = __reduce_add_sync(ALL_LANES, count);
    if (lane == 0) counts[warp] = count;
    const u64 best = segment.block_best(thread_best, scratch);  // its barrier covers the counts
    const int64_t place = (int64_t)row_idx * p.num_segments + blockIdx.x;
    const int64_t first_group = (int64_t)row_idx * p.num_segments * GROUPS;
    segment.store_groups(thread_best, LOG2_E, true, reinterpret_cast<uint32_t*>(p.group_keys) + first_group,
                         reinterpret_cast<float*>(p.group_sums) + first_group);
    if (threadIdx.x != 0) return;
    uint32_t at_least = 0;
    for (int i = 0; i < SCAN_THREADS / 32; i++) at_least += counts[i];
    reinterpret_cast<u64*>(p.segments)[place] = best;
    reinterpret_cast<uint32_t*>(p.at_least)[place] = at_least;
}

extern "C" __global__ void __launch_bounds__(PICK_THREADS, 2) logprobs_pick(const __grid_constant__ LogprobsParams p) {
    __shared__ SelectShared shared;
    int turn = 0;
    let_next_start();
    wait_for_previous();
    const int row_idx = blockIdx.x;
    const float* logits = reinterpret_cast<const float*>(p.logits) + row_idx * p.logits_stride;
    const int64_t first_segment = (int64_t)row_idx * p.num_segments;
    const uint32_t best_key = key_in(best_of_row(reinterpret_cast<const u64*>(p.segments) + first_segment, p.num_segments));
    const bool has_numbers = best_key > KEY_OF_NOTHING;
    const LogitsRow row{logits, p.vocab_size, of_key(best_key), LOG2_E};
    GroupsOfRow groups{reinterpret_cast<const uint32_t*>(p.group_keys) + first_segment * GROUPS,
                       reinterpret_cast<const float*>(p.group_sums) + first_segment * GROUPS, p.num_segments * GROUPS};
    groups.load();
    int* token_ids = reinterpret_cast<int*>(p.token_ids) + row_idx * p.token_ids_stride;
    float* logprobs = reinterpret_cast<float*>(p.logprobs) + row_idx * p.logprobs_stride;

    const u64 mass = mass_of_row(groups, row, shared, turn);
    const double log_total = log(fmax((double)mass / (double)FIXED_ONE, 1.0));
    const auto logprob = [&](float logit) {
        if (logit == -INFINITY || p.wants_logits) return logit;
        return (float)((logit == row.best ? 0.0 : (double)logit - (double)row.best) - log_total);
    };
    uint32_t found = 0;
    if (has_numbers && p.num_top > 0) {
        select_best(groups, row, p.num_top, shared, turn);
        found = min(shared.num_candidates, p.num_top);
        for (uint32_t i = threadIdx.x; i < found; i += PICK_THREADS) {
            token_ids[1 + i] = token_in(shared.candidates[i]);
            logprobs[1 + i] = logprob(of_key(key_in(shared.candidates[i])));
        }
    }
    if (threadIdx.x == 0) {
        // What is no number follows, by its ids.
        for (uint32_t token = 0; found < p.num_top && token < p.vocab_size; token++) {
            if (logits[token] > -INFINITY) continue;
            token_ids[1 + found] = token;
            logprobs[1 + found++] = -INFINITY;
        }
        const int chosen = reinterpret_cast<const int*>(p.chosen)[row_idx];
        const bool is_chosen = is_token(chosen, p.vocab_size);
        token_ids[0] = is_chosen ? chosen : -1;
        logprobs[0] = is_chosen ? logprob(number(logits[chosen])) : -INFINITY;
        uint32_t rank = 0;
        const uint32_t* at_least = reinterpret_cast<const uint32_t*>(p.at_least) + first_segment;
        for (uint32_t i = 0; i < p.num_segments; i++) rank += at_least[i];
        reinterpret_cast<int*>(p.ranks)[row_idx] = is_chosen ? rank : 0;
    }
}
