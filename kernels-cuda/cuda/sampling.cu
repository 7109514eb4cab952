// Draws a token for every row of logits.
//
//     logits --scan--> best token of each segment; best logit (and mass) of each group; winner of each segment
//            --pick--> the token
//
// sample_scan: every logit is read once. grid = (segments, rows), 256 threads.
//   Every row: the best token of the segment. A row that draws from all tokens: the segment's winner as well. A row
//   with a filter: the best logit of each group, and its mass where a top-p is measured against all tokens.
// sample_pick: grid = rows, 512 threads. Greedy: the best of the segments. Without a filter: the best of the winners.
//   With one: the k-th best group is a bound that k tokens reach, so only groups that reach it are read again; what
//   is left is sorted, cut and drawn from. Where too many tokens reach the bound, histograms over the row do it.
//
// sample_filter, in place of sample_pick: the logits of the tokens that it would draw from, divided by the temperature, and
//   -inf for the others. Greedy rows and padding stay as they are. `out` is not touched.
//
// logits: [rows, vocab_size] f32, row stride in elements; slots, positions, out: [rows] i32; temperature, top_p,
// min_p: [slots] f32; top_k: [slots] i32; keys: [slots, 3] u32. Scratch: segments, winners: [rows, segments] u64;
// group_keys [rows, segments * 64] u32, group_sums the same f32. A slot of -1 is padding: 0. A row that holds NaN,
// +inf or nothing finite gives -1.

// hot: sample_scan
#include "sampling_select.cuh"

namespace quire {

struct SampleParams {
    u64 logits, slots, positions, out;
    u64 temperature, top_k, top_p, min_p, keys;
    u64 segments, winners, group_keys, group_sums;
    int64_t logits_stride;
    uint32_t num_rows, vocab_size, num_segments, unused;
};

__device__ __forceinline__ Row row_at(const SampleParams& p, int slot) {
    Row row;
    row.temperature = reinterpret_cast<const float*>(p.temperature)[slot];
    row.top_p = reinterpret_cast<const float*>(p.top_p)[slot];
    row.min_p = reinterpret_cast<const float*>(p.min_p)[slot];
    row.top_k = reinterpret_cast<const int*>(p.top_k)[slot];
    return row;
}

__device__ __forceinline__ DrawKey key_at(const SampleParams& p, int slot, int row) {
    const uint32_t* key = reinterpret_cast<const uint32_t*>(p.keys) + 3 * (int64_t)slot;
    return {key[0], key[1], key[2], reinterpret_cast<const uint32_t*>(p.positions)[row]};
}

// The winner of the block's segment. A score in f32 tells who can win; those few are scored by the definition.
__device__ __forceinline__ Drawn segment_winner(const Segment& segment, float best, float temperature,
                                                const DrawKey& key, Drawn* scratch, uint32_t* maxima) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    const float rate = inverse(temperature, 1.0f);
    Contender contender;
    float bound = -INFINITY;
#pragma unroll
    for (int run = 0; run < VALUES; run += 4) {
        contender.offer_four(segment.values + run, segment.token(run), 1, best, rate, key, bound);
        bound = contender.bound();
    }
    const uint32_t warp_top = __reduce_max_sync(ALL_LANES, key_of(contender.score));
    if (lane == 0) maxima[warp] = warp_top;
    __syncthreads();
    bound = of_key(__reduce_max_sync(ALL_LANES, maxima[lane & (SCAN_THREADS / 32 - 1)])) - SLACK;
    Drawn drawn{0, NO_TOKEN};
    if (contender.second >= bound) {
        // Two tokens of one thread: hardly ever.
        for (int i = 0; i < VALUES; i++) {
            float logit = segment.values[0];
#pragma unroll
            for (int j = 1; j < VALUES; j++) logit = i == j ? segment.values[j] : logit;
            const uint32_t token = segment.token(i);
            if (logit > -INFINITY) drawn.take(key_of(score_of(logit, best, temperature, key, token)), token);
        }
    } else if (contender.score >= bound) {
        drawn.take(key_of(score_of(contender.logit, best, temperature, key, contender.token)), contender.token);
    }
    return block_best<SCAN_THREADS / 32>(drawn, scratch);
}

// The token of a row without a filter; for the first warp.
__device__ __forceinline__ uint32_t best_winner(const SampleParams& p, int row, float best, float temperature,
                                                const DrawKey& key) {
    const float* logits = reinterpret_cast<const float*>(p.logits) + row * p.logits_stride;
    const u64* winners = reinterpret_cast<const u64*>(p.winners) + (int64_t)row * p.num_segments;
    Drawn drawn{0, NO_TOKEN};
    for (uint32_t i = threadIdx.x & 31; i < p.num_segments; i += 32) {
        const uint32_t token = (uint32_t)winners[i];
        if (token == NO_TOKEN) continue;
        drawn.take(key_of(score_of(number(logits[token]), best, temperature, key, token)), token);
    }
    return warp_best(drawn).token;
}

// Whether min-p keeps a token.
struct MinP {
    float best, temperature;
    double log_min_p;

    __device__ __forceinline__ bool keeps(float logit) const {
        return exponent_of(logit, best, temperature) >= log_min_p;
    }

    // The lowest key that it keeps: a step or two from where the formula, solved for the logit, leads.
    __device__ uint32_t lowest_key() const {
        uint32_t kept = key_of(best), lost = KEY_OF_NOTHING;
        uint32_t key = isinf(best) ? kept : key_of((float)((double)best + (double)temperature * log_min_p));
        for (uint32_t step = 1; kept - lost > 1; step *= 2) {
            if (key <= lost || key >= kept) key = lost + (kept - lost) / 2;
            if (keeps(of_key(key))) {
                kept = key;
                key -= step;
            } else {
                lost = key;
                key += step;
            }
        }
        return kept;
    }
};

// Candidates that one warp cuts.
constexpr uint32_t WARP_CANDIDATES = 128;

struct Picker {
    const Row& parameters;
    const LogitsRow& row;
    GroupsOfRow& groups;
    DrawKey key;
    SelectShared& shared;
    int turn;

    __device__ __forceinline__ Drawn score(uint32_t token_key, uint32_t token) const {
        return {key_of(score_of(of_key(token_key), row.best, parameters.temperature, key, token)), token};
    }

    __device__ __forceinline__ u64 share(u64 mass) const { return (u64)ceil((double)parameters.top_p * (double)mass); }

    // How far below the best logit tokens can matter to a top-p: all those further away have less mass together than
    // what may be left out.
    __device__ __forceinline__ float reach() const {
        const float left_out = fmaxf(1.0f - parameters.top_p, 1e-9f);
        return (__logf((float)row.vocab_size) - __logf(left_out) + 1.0f) * parameters.temperature;
    }

    // A bound on keys that no token below can be among those that stay, and what a top-p is measured against, where it is
    // known: 0 is what top-k keeps.
    struct Bound {
        uint32_t low, lowest;
        u64 mass;
    };

    __device__ __forceinline__ Bound bound() {
        uint32_t low = KEY_OF_NOTHING + 1;
        if (parameters.has_min_p()) {
            low = MinP{row.best, parameters.temperature, log((double)fminf(parameters.min_p, 1.0f))}.lowest_key();
        }
        const uint32_t lowest = low;
        u64 mass = 0;
        if (parameters.has_top_k(row.vocab_size)) {
            const auto one = [](uint32_t) { return 1u; };
            low = max(low, bound_by_groups(groups, parameters.top_k, one, shared, turn));
        }
        if (parameters.has_only_top_p(row.vocab_size)) {
            mass = mass_of_row(groups, row, shared, turn);
            // In units so small that all groups together fit 32 bits; rounded to the safe side.
            const float unit = (float)(1u << (__clz(groups.num_groups) - 1));
            const auto weigh = [&](uint32_t key) { return (uint32_t)(weight(of_key(key), row.best, row.rate) * unit); };
            const double target = (double)share(mass) / (double)FIXED_ONE * (double)unit * 1.00001 + 1.0;
            low = bound_by_groups(groups, (uint32_t)fmin(target, 3e9), weigh, shared, turn);
        }
        return {low, lowest, mass};
    }

    __device__ uint32_t pick() {
        const Bound bound = this->bound();
        if (gather(groups, row, bound.low, shared)) return pick_among_candidates(bound.mass);
        __syncthreads();
        return draw(cut_of_row(bound.lowest, bound.mass));
    }

    // What stays, as a cut.
    __device__ Cut cut() {
        const Bound bound = this->bound();
        if (gather(groups, row, bound.low, shared)) {
            sort_candidates(shared);
            const u64 last = shared.candidates[cut_by_block(bound.mass) - 1];
            return {key_in(last), token_in(last)};
        }
        __syncthreads();
        return cut_of_row(bound.lowest, bound.mass);
    }

    // The candidates hold all that min-p and top-k keep, or enough for top-p.
    __device__ __forceinline__ uint32_t pick_among_candidates(u64 mass) {
        sort_candidates(shared);
        const u64* candidates = shared.candidates;
        const uint32_t kept = shared.num_candidates <= WARP_CANDIDATES ? cut_by_warp(mass) : cut_by_block(mass);
        Drawn drawn{0, NO_TOKEN};
        if (kept <= 32 && threadIdx.x >= 32) return NO_TOKEN;
        for (uint32_t i = threadIdx.x; i < kept; i += PICK_THREADS) {
            const Drawn other = score(key_in(candidates[i]), token_in(candidates[i]));
            drawn.take(other.score, other.token);
        }
        return kept <= 32 ? warp_best(drawn).token : block_best<PICK_WARPS>(drawn, shared.drawn).token;
    }

    // How many of the sorted candidates stay. `mass` is what a top-p is measured against; 0: what top-k keeps.
    __device__ __forceinline__ uint32_t cut_by_block(u64 mass) {
        uint32_t kept = shared.num_candidates;
        if (parameters.has_top_k(row.vocab_size) && (uint32_t)parameters.top_k < kept) {
            // The lowest that stays, and its ties.
            const uint32_t last = key_in(shared.candidates[parameters.top_k - 1]);
            uint32_t count = 0;
            for (uint32_t i = threadIdx.x; i < kept; i += PICK_THREADS) count += key_in(shared.candidates[i]) >= last;
            kept = block_total(count, shared, turn);
        }
        if (!parameters.has_top_p()) return kept;
        const u64 sum = mass_of_share(row, shared, kept);
        if (mass == 0) mass = block_total(sum, shared, turn);
        return candidates_that_reach(row, kept, sum, max(share(mass), 1ull), shared, turn);
    }

    // The same for few candidates: one warp, and one barrier to tell the others.
    __device__ __forceinline__ uint32_t cut_by_warp(u64 mass) {
        const uint32_t lane = threadIdx.x & 31, count = shared.num_candidates;
        if (threadIdx.x < 32) {
            constexpr int EACH = WARP_CANDIDATES / 32;
            uint32_t kept = count, keys[EACH];
#pragma unroll
            for (int i = 0; i < EACH; i++) {
                const uint32_t at = lane * EACH + i;
                keys[i] = at < count ? key_in(shared.candidates[at]) : 0;
            }
            if (parameters.has_top_k(row.vocab_size) && (uint32_t)parameters.top_k < count) {
                const uint32_t last = key_in(shared.candidates[parameters.top_k - 1]);
                uint32_t mine = 0;
#pragma unroll
                for (int i = 0; i < EACH; i++) mine += keys[i] >= last;
                kept = __reduce_add_sync(ALL_LANES, mine);
            }
            if (parameters.has_top_p()) {
                u64 sum = 0;
                uint32_t masses[EACH];
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    masses[i] = lane * EACH + i < kept ? row.mass(of_key(keys[i])) : 0;
                    sum += masses[i];
                }
                if (mass == 0) mass = warp_total(sum);
                const u64 wanted = max(share(mass), 1ull);
                u64 before = warp_up_to(sum) - sum;
                uint32_t reached = kept;
#pragma unroll
                for (int i = 0; i < EACH; i++) {
                    if (before < wanted && before + masses[i] >= wanted) reached = lane * EACH + i + 1;
                    before += masses[i];
                }
                kept = __reduce_min_sync(ALL_LANES, reached);
            }
            if (lane == 0) shared.found = kept;
        }
        __syncthreads();
        return shared.found;
    }

    // Too many tokens to sort.
    __device__ Cut cut_of_row(uint32_t low, u64 mass) {
        Cut cut{low, NO_TOKEN};
        if (parameters.has_top_k(row.vocab_size)) {
            cut = cut_by_histogram<false>(row, low, parameters.top_k, false, shared, turn);
        }
        if (parameters.has_top_p()) {
            if (mass == 0) mass = mass_from(row, cut.key, shared, turn);
            const u64 target = max(share(mass), 1ull);
            if (!cut_by_bins(row, cut.key, reach(), target, shared, turn, cut)) {
                __syncthreads();
                cut = cut_by_histogram<true>(row, cut.key, target, true, shared, turn);
            }
        }
        return cut;
    }

    // Draws from the tokens of a cut, by a score in f32 first.
    __device__ uint32_t draw(const Cut& cut) {
        const float rate = inverse(parameters.temperature, 1.0f);
        Contender contender;
        float bound = -INFINITY;
        for (uint32_t start = 0; start < row.vocab_size; start += 4 * PICK_THREADS) {
            const uint32_t first = start + threadIdx.x;
            float logits[4];
            bool any = false;
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t token = first + i * PICK_THREADS;
                const float logit = token < row.vocab_size ? number(row.logits[token]) : -INFINITY;
                const bool is_kept = cut.keeps(key_of(logit), token);
                logits[i] = is_kept ? logit : -INFINITY;
                any |= is_kept;
            }
            if (!__any_sync(ALL_LANES, any)) continue;
            contender.offer_four(logits, first, PICK_THREADS, row.best, rate, key, bound);
            bound = contender.bound();
        }
        const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
        const uint32_t warp_top = __reduce_max_sync(ALL_LANES, key_of(contender.score));
        u64* partial = shared.partial + turn * PICK_WARPS;
        turn ^= 1;
        if (lane == 0) partial[warp] = warp_top;
        __syncthreads();
        const uint32_t best = __reduce_max_sync(ALL_LANES, lane < PICK_WARPS ? (uint32_t)partial[lane] : 0);
        bound = of_key(best) - SLACK;
        Drawn drawn{0, NO_TOKEN};
        if (contender.second >= bound) {
            for (uint32_t token = threadIdx.x; token < row.vocab_size; token += PICK_THREADS) {
                const float logit = number(row.logits[token]);
                if (!cut.keeps(key_of(logit), token)) continue;
                if (!may_reach(exponent_about(logit, row.best, rate), bound, random_bits(key, token))) continue;
                const Drawn other = score(key_of(logit), token);
                drawn.take(other.score, other.token);
            }
        } else if (contender.score >= bound) {
            drawn = score(key_of(contender.logit), contender.token);
        }
        return block_best<PICK_WARPS>(drawn, shared.drawn).token;
    }
};

}  // namespace quire

using namespace quire;

extern "C" __global__ void __launch_bounds__(SCAN_THREADS, 4) sample_scan(const __grid_constant__ SampleParams p) {
    __shared__ u64 ranked_scratch[SCAN_THREADS / 32];
    __shared__ Drawn drawn_scratch[SCAN_THREADS / 32];
    __shared__ uint32_t maxima[SCAN_THREADS / 32];
    let_next_start();
    wait_for_previous();
    const int row_idx = blockIdx.y;
    Segment segment;
    segment.load(reinterpret_cast<const float*>(p.logits) + row_idx * p.logits_stride, blockIdx.x, p.vocab_size);
    const int slot = reinterpret_cast<const int*>(p.slots)[row_idx];
    if (slot < 0) return;
    const Row row = row_at(p, slot);
    const float thread_best = segment.clean<Nan::BEST>();
    const u64 best = segment.block_best(thread_best, ranked_scratch);
    const int64_t place = (int64_t)row_idx * p.num_segments + blockIdx.x;
    if (threadIdx.x == 0) reinterpret_cast<u64*>(p.segments)[place] = best;
    if (row.is_greedy()) return;
    if (row.has_filter(p.vocab_size)) {
        const int64_t first_group = (int64_t)row_idx * p.num_segments * GROUPS;
        segment.store_groups(thread_best, inverse(row.temperature, LOG2_E), row.has_only_top_p(p.vocab_size),
                             reinterpret_cast<uint32_t*>(p.group_keys) + first_group,
                             reinterpret_cast<float*>(p.group_sums) + first_group);
        return;
    }
    const float best_logit = of_key(key_in(best));
    Drawn winner{0, NO_TOKEN};
    if (best_logit > -INFINITY) {
        winner = segment_winner(segment, best_logit, row.temperature, key_at(p, slot, row_idx), drawn_scratch, maxima);
    }
    if (threadIdx.x == 0) reinterpret_cast<u64*>(p.winners)[place] = winner.token;
}

extern "C" __global__ void __launch_bounds__(PICK_THREADS, 2) sample_pick(const __grid_constant__ SampleParams p) {
    __shared__ SelectShared shared;
    let_next_start();
    wait_for_previous();
    const int row_idx = blockIdx.x;
    const int slot = reinterpret_cast<const int*>(p.slots)[row_idx];
    const u64* segments = reinterpret_cast<const u64*>(p.segments) + (int64_t)row_idx * p.num_segments;
    const u64 ranked_best = best_of_row(segments, p.num_segments);
    int* out = reinterpret_cast<int*>(p.out) + row_idx;
    if (slot < 0) {
        if (threadIdx.x == 0) *out = 0;
        return;
    }
    const Row row = row_at(p, slot);
    const uint32_t num_groups = p.num_segments * GROUPS;
    const int64_t first_group = (int64_t)row_idx * num_groups;
    GroupsOfRow groups{reinterpret_cast<const uint32_t*>(p.group_keys) + first_group,
                       reinterpret_cast<const float*>(p.group_sums) + first_group, num_groups};
    const bool has_filter = row.has_filter(p.vocab_size);
    if (!row.is_greedy() && has_filter) groups.load();
    const bool is_sound = key_in(ranked_best) > KEY_OF_NOTHING && key_in(ranked_best) < KEY_OF_INFINITY;
    if (!is_sound || row.is_greedy()) {
        if (threadIdx.x == 0) *out = is_sound ? (int)token_in(ranked_best) : -1;
        return;
    }
    const DrawKey key = key_at(p, slot, row_idx);
    const float best = of_key(key_in(ranked_best));
    uint32_t token;
    if (!has_filter) {
        if (threadIdx.x >= 32) return;
        token = best_winner(p, row_idx, best, row.temperature, key);
    } else {
        const LogitsRow logits{reinterpret_cast<const float*>(p.logits) + row_idx * p.logits_stride, p.vocab_size, best,
                               inverse(row.temperature, LOG2_E)};
        token = Picker{row, logits, groups, key, shared, 0}.pick();
    }
    if (threadIdx.x == 0) *out = token;
}

extern "C" __global__ void __launch_bounds__(PICK_THREADS, 2) sample_filter(const __grid_constant__ SampleParams p) {
    __shared__ SelectShared shared;
    let_next_start();
    wait_for_previous();
    const int row_idx = blockIdx.x;
    const int slot = reinterpret_cast<const int*>(p.slots)[row_idx];
    if (slot < 0) return;
    const Row row = row_at(p, slot);
    const u64* segments = reinterpret_cast<const u64*>(p.segments) + (int64_t)row_idx * p.num_segments;
    const uint32_t best_key = key_in(best_of_row(segments, p.num_segments));
    if (row.is_greedy()) return;
    float* logits = reinterpret_cast<float*>(p.logits) + row_idx * p.logits_stride;
    Cut cut{KEY_OF_NOTHING + 1, NO_TOKEN};
    if (best_key > KEY_OF_NOTHING && row.has_filter(p.vocab_size)) {
        const uint32_t num_groups = p.num_segments * GROUPS;
        const int64_t first_group = (int64_t)row_idx * num_groups;
        GroupsOfRow groups{reinterpret_cast<const uint32_t*>(p.group_keys) + first_group,
                           reinterpret_cast<const float*>(p.group_sums) + first_group, num_groups};
        groups.load();
        const LogitsRow whole{logits, p.vocab_size, of_key(best_key), inverse(row.temperature, LOG2_E)};
        cut = Picker{row, whole, groups, DrawKey{}, shared, 0}.cut();
        __syncthreads();  // all threads have read the row
    }
    for (uint32_t token = threadIdx.x; token < p.vocab_size; token += PICK_THREADS) {
        const float logit = number(logits[token]);
        logits[token] = cut.keeps(key_of(logit), token) ? logit / row.temperature : -INFINITY;
    }
}
