// Which tokens of a row are the best: by its groups where they are few (no token is looked at twice but those of a
// few groups), by histograms over the whole row where they are many. One block of PICK_THREADS threads a row.
#pragma once

#include "sampling.cuh"

namespace quire {

// Tokens that are selected by sorting them.
constexpr uint32_t MAX_CANDIDATES = 2048;
constexpr int BIN_BITS = 11;
constexpr uint32_t BINS = 1 << BIN_BITS;
constexpr int BINS_PER_THREAD = BINS / PICK_THREADS;

struct LogitsRow {
    const float* logits;
    uint32_t vocab_size;
    float best;  // the largest one
    float rate;  // LOG2_E / temperature

    __device__ __forceinline__ uint32_t mass(float logit) const { return fixed(weight(logit, best, rate)); }
};

// The groups of a row, as the scan left them. A thread holds the first keys of its own (for a vocabulary of 262,144 all
// of them) in registers.
struct GroupsOfRow {
    static constexpr int HELD = 8;

    const uint32_t* keys;
    const float* sums;
    uint32_t num_groups;
    uint32_t held[HELD];

    __device__ __forceinline__ void load() {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            const uint32_t group = threadIdx.x + i * PICK_THREADS;
            held[i] = group < num_groups ? keys[group] : 0;
        }
    }

    // Calls `visit(group, key)` for the thread's groups that hold a number.
    template <typename Visit> __device__ __forceinline__ void for_each(Visit visit) const {
#pragma unroll
        for (int i = 0; i < HELD; i++) {
            if (held[i] > KEY_OF_NOTHING) visit(threadIdx.x + i * PICK_THREADS, held[i]);
        }
        for (uint32_t group = threadIdx.x + HELD * PICK_THREADS; group < num_groups; group += PICK_THREADS) {
            const uint32_t key = keys[group];
            if (key > KEY_OF_NOTHING) visit(group, key);
        }
    }
};

// Tokens at and above a bound: those whose key is larger, and of those with this key the ones up to `last_tie`.
struct Cut {
    uint32_t key, last_tie;

    __device__ __forceinline__ bool keeps(uint32_t token_key, uint32_t token) const {
        return token_key > key || (token_key == key && token <= last_tie);
    }
};

struct SelectShared {
    union {
        struct {
            u64 candidates[MAX_CANDIDATES];
            uint32_t groups[MAX_CANDIDATES];
        };
        struct {
            uint32_t counts[BINS];
            uint32_t masses_low[BINS], masses_high[BINS];
        };
    };
    u64 partial[2 * PICK_WARPS];
    Drawn drawn[PICK_WARPS];
    uint32_t num_groups, num_candidates, found;
    u64 found_above;

    // The sum in two words, since shared memory adds words at once and longer ones by trial.
    __device__ __forceinline__ void add_mass(uint32_t bin, uint32_t mass) {
        if (atomicAdd(&masses_low[bin], mass) > ~mass) atomicAdd(&masses_high[bin], 1);
    }

    __device__ __forceinline__ u64 mass_in(uint32_t bin) const { return (u64)masses_high[bin] << 32 | masses_low[bin]; }
};

// ---- Reductions. Each has a barrier before its result is known; `partial` halves alternate by `turn`, so that a
// reduction needs no second barrier before the next one.

__device__ __forceinline__ uint32_t block_total(uint32_t x, SelectShared& shared, int& turn) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u64* partial = shared.partial + turn * PICK_WARPS;
    turn ^= 1;
    x = __reduce_add_sync(ALL_LANES, x);
    if (lane == 0) partial[warp] = x;
    __syncthreads();
    return __reduce_add_sync(ALL_LANES, lane < PICK_WARPS ? (uint32_t)partial[lane] : 0);
}

__device__ __forceinline__ u64 warp_total(u64 x) {
#pragma unroll
    for (int distance = 16; distance > 0; distance /= 2) x += __shfl_xor_sync(ALL_LANES, x, distance);
    return x;
}

__device__ __forceinline__ u64 block_total(u64 x, SelectShared& shared, int& turn) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u64* partial = shared.partial + turn * PICK_WARPS;
    turn ^= 1;
    x = warp_total(x);
    if (lane == 0) partial[warp] = x;
    __syncthreads();
    return warp_total(lane < PICK_WARPS ? partial[lane] : 0);
}

// The sum over the lanes up to this one.
template <typename T> __device__ __forceinline__ T warp_up_to(T x) {
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const T other = __shfl_up_sync(ALL_LANES, x, distance);
        if ((threadIdx.x & 31) >= distance) x += other;
    }
    return x;
}

__device__ __forceinline__ uint32_t warp_total(uint32_t x) { return __reduce_add_sync(ALL_LANES, x); }

// The sum over the threads before this one.
template <typename T> __device__ __forceinline__ T block_before(T x, SelectShared& shared, int& turn) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u64* partial = shared.partial + turn * PICK_WARPS;
    turn ^= 1;
    const T up_to = warp_up_to(x);
    if (lane == 31) partial[warp] = up_to;
    __syncthreads();
    return warp_total(lane < warp ? (T)partial[lane] : 0) + up_to - x;
}

struct Extremes {
    uint32_t low, high;
};

__device__ __forceinline__ Extremes block_extremes(Extremes x, SelectShared& shared, int& turn) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u64* partial = shared.partial + turn * PICK_WARPS;
    turn ^= 1;
    const uint32_t low = __reduce_min_sync(ALL_LANES, x.low), high = __reduce_max_sync(ALL_LANES, x.high);
    if (lane == 0) partial[warp] = (u64)low << 32 | high;
    __syncthreads();
    const u64 other = partial[lane % PICK_WARPS];
    return {__reduce_min_sync(ALL_LANES, (uint32_t)(other >> 32)), __reduce_max_sync(ALL_LANES, (uint32_t)other)};
}

// Finds the bin, from the top, in which the running sum of `value_of(bin)` reaches `target`: `shared.found`, with the sum
// above it in `shared.found_above`. False where it never does.
template <typename ValueOf>
__device__ __forceinline__ bool find_bin(ValueOf value_of, u64 target, SelectShared& shared, int& turn) {
    const int top = BINS - 1 - (int)threadIdx.x * BINS_PER_THREAD;
    using Sum = decltype(value_of(0));
    Sum sum = 0;
#pragma unroll
    for (int i = 0; i < BINS_PER_THREAD; i++) sum += value_of(top - i);
    if (threadIdx.x == 0) shared.found = NO_TOKEN;
    Sum above = block_before(sum, shared, turn);
    if (above < target && (u64)above + sum >= target) {
        int bin = top;
        while ((u64)above + value_of(bin) < target) above += value_of(bin--);
        shared.found = bin;
        shared.found_above = above;
    }
    __syncthreads();
    return shared.found != NO_TOKEN;
}

// ---- By groups.

// A key that groups of `target` together reach, and not many more; where there are not so many, the lowest of all. A
// group weighs `weigh(key)`. By bins of equal width, and again within the one that is found while it holds many.
template <typename Weigh>
__device__ __forceinline__ uint32_t bound_by_groups(const GroupsOfRow& groups, uint32_t target, Weigh weigh,
                                                    SelectShared& shared, int& turn) {
    Extremes range{NO_TOKEN, 0};
    groups.for_each([&](uint32_t, uint32_t key) {
        range.low = min(range.low, key);
        range.high = max(range.high, key);
    });
    const uint32_t enough = target + target / 4 + 16;
    uint32_t above = 0;
    for (int round = 0;; round++) {
        for (uint32_t bin = threadIdx.x; bin < BINS; bin += PICK_THREADS) shared.counts[bin] = 0;
        range = block_extremes(range, shared, turn);
        const float low = of_key(range.low), scale = fminf((float)BINS / (of_key(range.high) - low), 1e30f);
        const auto bin_of = [&](uint32_t key) {
            const uint32_t bin = min((uint32_t)((of_key(key) - low) * scale), BINS - 1);
            return key >= range.low && key <= range.high ? bin : NO_TOKEN;
        };
        groups.for_each([&](uint32_t, uint32_t key) {
            const uint32_t bin = bin_of(key);
            if (bin != NO_TOKEN) atomicAdd(&shared.counts[bin], weigh(key));
        });
        __syncthreads();
        const bool is_found =
            find_bin([&](uint32_t bin) { return shared.counts[bin]; }, target - above, shared, turn);
        if (!is_found) return KEY_OF_NOTHING + 1;  // in the first round only
        const uint32_t found = shared.found, total = above + (uint32_t)shared.found_above + shared.counts[found];
        Extremes inner{NO_TOKEN, 0};
        groups.for_each([&](uint32_t, uint32_t key) {
            if (bin_of(key) != found) return;
            inner.low = min(inner.low, key);
            inner.high = max(inner.high, key);
        });
        above += (uint32_t)shared.found_above;
        const Extremes bin = block_extremes(inner, shared, turn);
        if (total <= enough || bin.low == bin.high || round == 3) return bin.low;
        range = bin;
    }
}

// The mass of the whole row.
__device__ __forceinline__ u64 mass_of_row(const GroupsOfRow& groups, const LogitsRow& row, SelectShared& shared,
                                           int& turn) {
    u64 mass = 0;
    groups.for_each([&](uint32_t group, uint32_t key) {
        mass += __float2ull_rn(groups.sums[group] * weight(of_key(key), row.best, row.rate) * FIXED_ONE);
    });
    return block_total(mass, shared, turn);
}

// Collects the tokens whose key is at least `low`, in no order. Whether there was room for them.
__device__ __forceinline__ bool gather(const GroupsOfRow& groups, const LogitsRow& row, uint32_t low, SelectShared& shared) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (threadIdx.x == 0) shared.num_groups = shared.num_candidates = 0;
    __syncthreads();
    groups.for_each([&](uint32_t group, uint32_t key) {
        if (key < low) return;
        const uint32_t place = atomicAdd(&shared.num_groups, 1);
        if (place < MAX_CANDIDATES) shared.groups[place] = group;
    });
    __syncthreads();
    const uint32_t num_groups = shared.num_groups;
    if (num_groups > MAX_CANDIDATES) return false;
    // Several groups of a warp at once, for the loads to overlap; two tokens a lane: a run of 16 is eight lanes wide.
    constexpr int AT_ONCE = 4;
    const uint32_t lane_token = lane / 8 * (4 * SCAN_THREADS) + lane % 8;
    for (uint32_t i = warp; i < num_groups; i += AT_ONCE * PICK_WARPS) {
        uint32_t tokens[2 * AT_ONCE];
        float logits[2 * AT_ONCE];
#pragma unroll
        for (int j = 0; j < 2 * AT_ONCE; j++) {
            const uint32_t at = i + j / 2 * PICK_WARPS, group = shared.groups[min(at, num_groups - 1)];
            const uint32_t token = group / GROUPS * SEGMENT + group % GROUPS * 16 + lane_token + j % 2 * 8;
            tokens[j] = at < num_groups && token < row.vocab_size ? token : NO_TOKEN;
            logits[j] = tokens[j] == NO_TOKEN ? -INFINITY : row.logits[token];
        }
#pragma unroll
        for (int j = 0; j < 2 * AT_ONCE; j++) {
            const uint32_t key = key_of(number(logits[j]));
            if (key < low || tokens[j] == NO_TOKEN) continue;
            const uint32_t place = atomicAdd(&shared.num_candidates, 1);
            if (place < MAX_CANDIDATES) shared.candidates[place] = ranked(key, tokens[j]);
        }
    }
    __syncthreads();
    return shared.num_candidates <= MAX_CANDIDATES;
}

// Sorts the candidates, the best first.
__device__ void sort_candidates(SelectShared& shared) {
    const uint32_t count = shared.num_candidates;
    u64* candidates = shared.candidates;
    if (count <= PICK_THREADS) {
        // The place of each is the number of better ones; no two are equal. As many lanes as there are threads for it
        // count them.
        const uint32_t lanes = PICK_THREADS >> (32 - __clz(max(count, PICK_THREADS / 32) - 1));
        const uint32_t at = threadIdx.x / lanes;
        const u64 mine = at < count ? candidates[at] : 0;
        uint32_t place = 0;
        if (at < count) {
            for (uint32_t i = threadIdx.x % lanes; i < count; i += lanes) place += candidates[i] > mine;
        }
        for (uint32_t distance = lanes / 2; distance > 0; distance /= 2) {
            place += __shfl_xor_sync(ALL_LANES, place, distance);
        }
        __syncthreads();
        if (at < count && threadIdx.x % lanes == 0) candidates[place] = mine;
        __syncthreads();
        return;
    }
    const uint32_t size = 1u << (32 - __clz(count - 1));
    for (uint32_t i = count + threadIdx.x; i < size; i += PICK_THREADS) candidates[i] = 0;
    // Bitonic (Batcher, 1968).
    for (uint32_t run = 2; run <= size; run *= 2) {
        for (uint32_t distance = run / 2; distance > 0; distance /= 2) {
            __syncthreads();
            for (uint32_t pair = threadIdx.x; pair < size / 2; pair += PICK_THREADS) {
                const uint32_t a = 2 * pair - (pair & (distance - 1)), b = a + distance;
                const u64 first = candidates[a], second = candidates[b];
                if ((first < second) == ((a & run) == 0)) candidates[a] = second, candidates[b] = first;
            }
        }
    }
    __syncthreads();
}

// How many of the first `count` sorted candidates it takes to reach a mass; all where they do not. `sum` is what the
// thread's share of them weighs (`mass_of_share`).
struct Share {
    uint32_t start, end;

    __device__ __forceinline__ explicit Share(uint32_t count) {
        const uint32_t each = (count + PICK_THREADS - 1) / PICK_THREADS;
        start = min(threadIdx.x * each, count);
        end = min(start + each, count);
    }
};

__device__ __forceinline__ uint32_t mass_of_candidate(const LogitsRow& row, const SelectShared& shared, uint32_t i) {
    return row.mass(of_key(key_in(shared.candidates[i])));
}

__device__ u64 mass_of_share(const LogitsRow& row, const SelectShared& shared, uint32_t count) {
    const Share share(count);
    u64 sum = 0;
    for (uint32_t i = share.start; i < share.end; i++) sum += mass_of_candidate(row, shared, i);
    return sum;
}

__device__ uint32_t candidates_that_reach(const LogitsRow& row, uint32_t count, u64 sum, u64 wanted,
                                          SelectShared& shared, int& turn) {
    const Share share(count);
    if (threadIdx.x == 0) shared.found = count;
    u64 before = block_before(sum, shared, turn);
    if (before < wanted && before + sum >= wanted) {
        uint32_t i = share.start;
        for (; before < wanted; i++) before += mass_of_candidate(row, shared, i);
        shared.found = i;
    }
    __syncthreads();
    return shared.found;
}

// ---- By histograms.

template <typename Visit> __device__ __forceinline__ void for_each_token(const LogitsRow& row, Visit visit) {
    uint32_t first = 0;
    if (((uintptr_t)row.logits & 15) == 0) {
        const float4* quads = reinterpret_cast<const float4*>(row.logits);
        first = row.vocab_size / 4 * 4;
#pragma unroll 2
        for (uint32_t token = threadIdx.x * 4; token < first; token += PICK_THREADS * 4) {
            const float4 quad = quads[token / 4];
            visit(token, number(quad.x));
            visit(token + 1, number(quad.y));
            visit(token + 2, number(quad.z));
            visit(token + 3, number(quad.w));
        }
    }
    for (uint32_t token = first + threadIdx.x; token < row.vocab_size; token += PICK_THREADS) {
        visit(token, number(row.logits[token]));
    }
}

// The token that is the `n`-th (from 1) of those with this key.
__device__ uint32_t nth_tie(const LogitsRow& row, uint32_t key, uint32_t n, SelectShared& shared, int& turn) {
    uint32_t before = 0;
    if (threadIdx.x == 0) shared.found = NO_TOKEN;
    for (uint32_t start = 0; start < row.vocab_size && before < n; start += PICK_THREADS) {
        const uint32_t token = start + threadIdx.x;
        const bool is_tie = token < row.vocab_size && key_of(number(row.logits[token])) == key;
        const uint32_t mine = before + block_before((uint32_t)is_tie, shared, turn) + 1;
        if (is_tie && mine == n) shared.found = token;
        before += __syncthreads_count(is_tie);
    }
    __syncthreads();
    const uint32_t found = shared.found;
    __syncthreads();
    return found;
}

// The smallest cut at or above `low` that holds `target` tokens or, BY_MASS, that mass; all from `low` on where
// there is less. Ties count by their ids where `splits_ties`, else they all stay.
template <bool BY_MASS>
__device__ Cut cut_by_histogram(const LogitsRow& row, uint32_t low, u64 target, bool splits_ties,
                                SelectShared& shared, int& turn) {
    uint32_t base = low, range = key_of(row.best) - low;
    for (;;) {
        const int bits = 32 - __clz(range);
        const int shift = max(bits - BIN_BITS, 0);
        for (uint32_t bin = threadIdx.x; bin < BINS; bin += PICK_THREADS) {
            shared.counts[bin] = shared.masses_low[bin] = shared.masses_high[bin] = 0;
        }
        __syncthreads();
        for_each_token(row, [&](uint32_t, float logit) {
            const uint32_t above = key_of(logit) - base;  // wraps to much below the base
            if (above > range) return;
            atomicAdd(&shared.counts[above >> shift], 1u);
            if (BY_MASS) shared.add_mass(above >> shift, row.mass(logit));
        });
        __syncthreads();
        const auto value_of = [&](uint32_t bin) { return BY_MASS ? shared.mass_in(bin) : (u64)shared.counts[bin]; };
        const bool is_found = find_bin(value_of, target, shared, turn);
        if (!is_found) return {low, NO_TOKEN};
        const uint32_t bin = shared.found;
        target -= shared.found_above;
        base += bin << shift;
        if (shift == 0) {
            const uint32_t ties = shared.counts[bin];
            u64 wanted = target;
            if (BY_MASS) {
                const u64 each = max(row.mass(of_key(base)), 1u);
                wanted = (target + each - 1) / each;
            }
            __syncthreads();
            if (!splits_ties || wanted >= ties) return {base, NO_TOKEN};
            return {base, nth_tie(row, base, (uint32_t)wanted, shared, turn)};
        }
        range = (1u << shift) - 1;
        __syncthreads();
    }
}

// The smallest cut at or above `low` that reaches `target`, by bins of equal width below the best logit: the tokens of
// the bin in which the target is reached are sorted. Fails where they are too many, or the target is further from the
// best logit than `reach`.
__device__ bool cut_by_bins(const LogitsRow& row, uint32_t low, float reach, u64 target, SelectShared& shared, int& turn,
                            Cut& cut) {
    const float range = fminf(row.best - of_key(low), reach), scale = (float)BINS / range;
    if (!(range > 0.0f && scale < 1e30f)) return false;
    const auto bin_of = [&](float logit) {
        const float below = row.best - logit;
        const bool is_in = below <= range && key_of(logit) >= low;
        return is_in ? BINS - 1 - min((uint32_t)(below * scale), BINS - 1) : NO_TOKEN;
    };
    for (uint32_t bin = threadIdx.x; bin < BINS; bin += PICK_THREADS) {
        shared.masses_low[bin] = shared.masses_high[bin] = 0;
    }
    __syncthreads();
    for_each_token(row, [&](uint32_t, float logit) {
        const uint32_t bin = bin_of(logit);
        if (bin != NO_TOKEN) shared.add_mass(bin, row.mass(logit));
    });
    __syncthreads();
    if (!find_bin([&](uint32_t bin) { return shared.mass_in(bin); }, target, shared, turn)) return false;
    const uint32_t found = shared.found;
    const u64 wanted = target - shared.found_above;
    if (threadIdx.x == 0) shared.num_candidates = 0;
    __syncthreads();
    for_each_token(row, [&](uint32_t token, float logit) {
        if (bin_of(logit) != found) return;
        const uint32_t place = atomicAdd(&shared.num_candidates, 1);
        if (place < MAX_CANDIDATES) shared.candidates[place] = ranked(key_of(logit), token);
    });
    __syncthreads();
    const uint32_t count = shared.num_candidates;
    if (count > MAX_CANDIDATES) return false;
    sort_candidates(shared);
    const u64 sum = mass_of_share(row, shared, count);
    const u64 last = shared.candidates[candidates_that_reach(row, count, sum, wanted, shared, turn) - 1];
    cut = {key_in(last), token_in(last)};
    return true;
}

// The mass of the tokens whose key is at least `low`.
__device__ u64 mass_from(const LogitsRow& row, uint32_t low, SelectShared& shared, int& turn) {
    u64 mass = 0;
    for_each_token(row, [&](uint32_t, float logit) {
        if (key_of(logit) >= low) mass += row.mass(logit);
    });
    return block_total(mass, shared, turn);
}

}  // namespace quire
