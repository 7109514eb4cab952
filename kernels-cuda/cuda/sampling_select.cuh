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

    __device__ __forceinline__ u64 mass(float logit) const { return fixed(weight(logit, best, rate)); }
};

// The groups of a row, as the scan left them.
struct GroupsOfRow {
    const uint32_t* keys;
    const float* sums;
    uint32_t num_groups;
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
            u64 masses[BINS];
            uint32_t counts[BINS];
        };
    };
    u64 partial[2 * PICK_WARPS];
    Drawn drawn[PICK_WARPS];
    uint32_t num_groups, num_candidates, found, found_count;
    u64 found_above;
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

// The sum over the threads before this one.
__device__ __forceinline__ u64 block_before(u64 x, SelectShared& shared, int& turn) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    u64* partial = shared.partial + turn * PICK_WARPS;
    turn ^= 1;
    u64 up_to = x;
#pragma unroll
    for (int distance = 1; distance < 32; distance *= 2) {
        const u64 other = __shfl_up_sync(ALL_LANES, up_to, distance);
        if (lane >= distance) up_to += other;
    }
    if (lane == 31) partial[warp] = up_to;
    __syncthreads();
    return warp_total(lane < warp ? partial[lane] : 0) + up_to - x;
}

// ---- By groups.

// A key that the best of groups of at least `target` weights reach together, and not many more; `lowest` where
// there are not so many. A group weighs `weigh(key, group)`.
template <typename Weigh>
__device__ uint32_t bound_by_groups(const GroupsOfRow& groups, uint32_t best_key, uint32_t target, Weigh weigh,
                                    SelectShared& shared, int& turn) {
    constexpr int HELD = 8;
    uint32_t keys[HELD], weights[HELD];
#pragma unroll
    for (int i = 0; i < HELD; i++) {
        const uint32_t group = threadIdx.x + i * PICK_THREADS;
        keys[i] = group < groups.num_groups ? groups.keys[group] : 0;
        weights[i] = keys[i] > KEY_OF_NOTHING ? weigh(keys[i]) : 0;
    }
    uint32_t low = KEY_OF_NOTHING + 1, high = best_key;
    while (low < high) {
        const uint32_t middle = low + (high - low + 1) / 2;
        uint32_t total = 0;
#pragma unroll
        for (int i = 0; i < HELD; i++) total += keys[i] >= middle ? weights[i] : 0;
        for (uint32_t group = threadIdx.x + HELD * PICK_THREADS; group < groups.num_groups; group += PICK_THREADS) {
            const uint32_t key = groups.keys[group];
            total += key >= middle ? weigh(key) : 0;
        }
        total = block_total(total, shared, turn);
        if (total < target) {
            high = middle - 1;
        } else {
            low = middle;
            if (total - target <= target / 8 + 4) break;
        }
    }
    return low;
}

// The mass of the whole row.
__device__ u64 mass_of_row(const GroupsOfRow& groups, const LogitsRow& row, SelectShared& shared, int& turn) {
    u64 mass = 0;
    for (uint32_t group = threadIdx.x; group < groups.num_groups; group += PICK_THREADS) {
        const uint32_t key = groups.keys[group];
        if (key > KEY_OF_NOTHING) mass += fixed(groups.sums[group] * weight(of_key(key), row.best, row.rate));
    }
    return block_total(mass, shared, turn);
}

// Collects the tokens whose key is at least `low`, in no order. Whether there was room for them.
__device__ bool gather(const GroupsOfRow& groups, const LogitsRow& row, uint32_t low, SelectShared& shared) {
    const int lane = threadIdx.x & 31, warp = threadIdx.x >> 5;
    if (threadIdx.x == 0) shared.num_groups = shared.num_candidates = 0;
    __syncthreads();
    for (uint32_t group = threadIdx.x; group < groups.num_groups; group += PICK_THREADS) {
        if (groups.keys[group] < low) continue;
        const uint32_t place = atomicAdd(&shared.num_groups, 1);
        if (place < MAX_CANDIDATES) shared.groups[place] = group;
    }
    __syncthreads();
    const uint32_t num_groups = shared.num_groups;
    if (num_groups > MAX_CANDIDATES) return false;
    for (uint32_t i = warp; i < num_groups; i += PICK_WARPS) {
        const uint32_t group = shared.groups[i];
        // Two tokens a lane: a run of 16 tokens is eight lanes wide.
        const uint32_t token = group / GROUPS * SEGMENT + lane / 8 * (4 * SCAN_THREADS) + group % GROUPS * 16 + lane % 8;
#pragma unroll
        for (uint32_t half = 0; half < 16; half += 8) {
            if (token + half >= row.vocab_size) continue;
            const uint32_t key = key_of(number(row.logits[token + half]));
            if (key < low) continue;
            const uint32_t place = atomicAdd(&shared.num_candidates, 1);
            if (place < MAX_CANDIDATES) shared.candidates[place] = ranked(key, token + half);
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
        // The place of each is the number of better ones; no two are equal.
        const u64 mine = threadIdx.x < count ? candidates[threadIdx.x] : 0;
        uint32_t place = 0;
        if (threadIdx.x < count) {
#pragma unroll 4
            for (uint32_t i = 0; i < count; i++) place += candidates[i] > mine;
        }
        __syncthreads();
        if (threadIdx.x < count) candidates[place] = mine;
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
                const uint32_t a = 2 * pair - pair % distance, b = a + distance;
                const u64 first = candidates[a], second = candidates[b];
                if ((first < second) == ((a & run) == 0)) candidates[a] = second, candidates[b] = first;
            }
        }
    }
    __syncthreads();
}

// ---- By histograms.

// Finds the bin, from the top, in which the running sum of `values` (a bin each) reaches `target`: `shared.found`,
// with the sum above it in `shared.found_above`. False where it never does.
template <typename Value>
__device__ bool find_bin(const Value* values, u64 target, SelectShared& shared, int& turn) {
    const int top = BINS - 1 - (int)threadIdx.x * BINS_PER_THREAD;
    u64 sum = 0;
#pragma unroll
    for (int i = 0; i < BINS_PER_THREAD; i++) sum += values[top - i];
    if (threadIdx.x == 0) shared.found = NO_TOKEN;
    u64 above = block_before(sum, shared, turn);
    if (above < target && above + sum >= target) {
        int bin = top;
        while (above + values[bin] < target) above += values[bin--];
        shared.found = bin;
        shared.found_above = above;
    }
    __syncthreads();
    return shared.found != NO_TOKEN;
}

template <typename Visit> __device__ __forceinline__ void for_each_token(const LogitsRow& row, Visit visit) {
#pragma unroll 4
    for (uint32_t token = threadIdx.x; token < row.vocab_size; token += PICK_THREADS) {
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
        const uint32_t mine = before + (uint32_t)block_before((u64)is_tie, shared, turn) + 1;
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
        for (uint32_t bin = threadIdx.x; bin < BINS; bin += PICK_THREADS) shared.masses[bin] = shared.counts[bin] = 0;
        __syncthreads();
        for_each_token(row, [&](uint32_t, float logit) {
            const uint32_t above = key_of(logit) - base;  // wraps to much below the base
            if (above > range) return;
            atomicAdd(&shared.counts[above >> shift], 1u);
            if (BY_MASS) atomicAdd(&shared.masses[above >> shift], row.mass(logit));
        });
        __syncthreads();
        const bool is_found = BY_MASS ? find_bin(shared.masses, target, shared, turn)
                                      : find_bin(shared.counts, target, shared, turn);
        if (!is_found) return {low, NO_TOKEN};
        const uint32_t bin = shared.found;
        target -= shared.found_above;
        base += bin << shift;
        if (shift == 0) {
            const uint32_t ties = shared.counts[bin];
            u64 wanted = target;
            if (BY_MASS) {
                const u64 each = max(row.mass(of_key(base)), 1ull);
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

// The mass of the tokens whose key is at least `low`.
__device__ u64 mass_from(const LogitsRow& row, uint32_t low, SelectShared& shared, int& turn) {
    u64 mass = 0;
    for_each_token(row, [&](uint32_t, float logit) {
        if (key_of(logit) >= low) mass += row.mass(logit);
    });
    return block_total(mass, shared, turn);
}

}  // namespace quire
