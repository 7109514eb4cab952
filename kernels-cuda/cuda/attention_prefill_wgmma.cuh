// Attention of rows that compute many tokens, on Hopper: tiles of 128 queries against tiles of 128 keys by wgmma.
//
// After FlashAttention-3 (Shah et al., 2024): one warp has the tensor copy engine bring keys and values, a block of the
// cache at a time; two warpgroups have 64 queries each and compute. The scores of the next tile of keys are begun before
// the values of this one are weighed, so that the tensor cores work while exponentials are taken, of this warpgroup's
// and of the other's. Blocks stay and take one tile of queries after the other, so that copies run ahead into the next
// one. Tiles and plan are those of attention_prefill.cuh.
//
//   grid   (blocks)   threads 384   shared: Wide::SHARED_BYTES
//   The cache as a matrix of rows of head_dim elements: those of a block's keys of head 0, of head 1, ..., of its values.
#pragma once

#include "attention_prefill.cuh"
#include "attention_wgmma.cuh"

namespace attention {

struct WideParams {
    // How the copy engine sees the layer's cache: boxes of 64 elements by the tokens of a block, 128-byte swizzle.
    struct alignas(64) Map {
        uint64_t words[16];
    } map;
    PrefillParams prefill;
    int32_t max_tiles;
};

}  // namespace attention

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
namespace attention {

template <int HD>
struct Wide {
    static constexpr int KEYS = 128;  // Of a tile.
    static constexpr int PANELS = HD / 64;
    static constexpr int PANEL_BYTES = 128 * 128;  // 128 rows of queries, keys or values.
    static constexpr int TILE_BYTES = PANELS * PANEL_BYTES;
    static constexpr int STAGES = 2;
    static constexpr int KEYS_AT = 2 * TILE_BYTES;  // Behind the queries of this tile and of the next one.
    static constexpr int VALUES_AT = KEYS_AT + STAGES * TILE_BYTES;
    static constexpr int BARRIERS_AT = VALUES_AT + STAGES * TILE_BYTES;
    static constexpr int SHARED_BYTES = BARRIERS_AT + 4 * STAGES * 8 + 1024;  // The panels start at multiples of 1,024.
    static constexpr int CONSUMER_THREADS = 256;
    static constexpr int PIECES = HD / 8;

    // Where the tile of keys number `n` of a block of threads is, and the phase of its barriers.
    static __device__ __forceinline__ int stage(int n) { return n % STAGES; }
    static __device__ __forceinline__ int parity(int n) { return n / STAGES & 1; }
};

// The barriers of a stage: keys or values there, keys or values read.
template <int STAGES>
struct Barriers {
    uint32_t base;
    __device__ __forceinline__ uint32_t full(int what, int stage) const { return base + (what * STAGES + stage) * 8; }
    __device__ __forceinline__ uint32_t empty(int what, int stage) const { return full(what + 2, stage); }
};

// A tile of queries and what it sees.
struct WideTile {
    QueryTile tile;
    int head, kv_head, num_heads;
    int low, end;  // Keys that some query sees.

    // The tile that an item of work stands for. Items are tiles, the longest first, by heads.
    __device__ __forceinline__ void become(const PrefillParams &p, int item, int num_heads_in_all) {
        tile = reinterpret_cast<const QueryTile *>(p.tiles)[item / num_heads_in_all];
        head = item % num_heads_in_all;
        kv_head = head / p.group;
        const int first_head = head % p.group, tile_heads = TILE_QUERIES >> tile.log2_span;
        num_heads = first_head % tile_heads == 0 ? min(tile_heads, p.group - first_head) : 0;
        low = p.window > 0 ? max(0, tile.position - p.window + 1) : 0;
        end = tile.is_padding ? 0 : tile.position + tile.num_tokens;
    }
    // Empty tiles are the last ones.
    __device__ __forceinline__ bool is_end() const { return tile.num_tokens == 0; }
    // Whether it is of another head's tile.
    __device__ __forceinline__ bool is_taken() const { return num_heads == 0; }
};

// The tiles of this block, one after the other. Every other round is in reverse, so that each block has long and short
// ones.
struct TileWalk {
    const WideParams &p;
    int round = 0;

    // The next one, if any.
    __device__ __forceinline__ bool next(WideTile &tile) {
        const int num_heads = p.prefill.num_kv_heads * p.prefill.group, num_items = p.max_tiles * num_heads;
        while (round * gridDim.x < num_items) {
            const int item = round * gridDim.x + (round % 2 == 0 ? blockIdx.x : gridDim.x - 1 - blockIdx.x);
            ++round;
            if (item >= num_items) continue;
            tile.become(p.prefill, item, num_heads);
            if (tile.is_end()) return false;
            if (!tile.is_taken()) return true;
        }
        return false;
    }
};

// A warp that has keys (`what` 0) or values (1) copied, a panel of each tile.
template <int HD>
__device__ __forceinline__ void copy_tiles(const WideParams &params, int what, int panel, uint32_t base,
                                           Barriers<Wide<HD>::STAGES> barriers) {
    using W = Wide<HD>;
    const PrefillParams &p = params.prefill;
    const int lane = threadIdx.x % 32, block_rows = 1 << p.block_shift;
    const uint32_t panels = base + (what == 0 ? W::KEYS_AT : W::VALUES_AT) + panel * W::PANEL_BYTES + lane * block_rows * 128;
    int n = 0;  // Tiles of keys so far.
    WideTile tile;
    for (TileWalk walk{params}; walk.next(tile);) {
        const int *table = reinterpret_cast<const int *>(p.block_tables) + int64_t(tile.tile.row) * p.table_stride;
        // A lane has one block of the tile.
        const auto is_seen = [&](int key) {
            const int at = key + lane * block_rows;
            return lane * block_rows < W::KEYS && at < tile.end && at + block_rows > tile.low;
        };
        const auto look_up = [&](int key) {
            return is_seen(key) ? __ldg(table + ((key >> p.block_shift) + lane)) : 0;
        };
        int key = tile.low & ~(W::KEYS - 1);
        int id = look_up(key);
        for (; key < tile.end; key += W::KEYS, ++n) {
            const int next_id = look_up(key + W::KEYS);
            const bool has_block = is_seen(key);
            const int num_blocks = __popc(__ballot_sync(0xffffffffu, has_block));
            const int stage = W::stage(n);
            if (n >= W::STAGES) wait_barrier(barriers.empty(what, stage), W::parity(n) ^ 1);
            const uint32_t full = barriers.full(what, stage);
            if (lane == 0) arrive_expecting(full, num_blocks * block_rows * 128);
            __syncwarp();
            if (has_block) {
                const int row = ((id * 2 + what) * p.num_kv_heads + tile.kv_head) << p.block_shift;
                copy_box(panels + stage * W::TILE_BYTES, &params.map, panel * 64, row, full);
            }
            id = next_id;
        }
    }
}

// s = q k^T.
template <typename T, int HD>
__device__ __forceinline__ void begin_scores(float (&s)[64], uint32_t queries, uint32_t keys) {
#pragma unroll
    for (int k = 0; k < HD / 16; ++k) {
        const uint32_t at = k / 4 * Wide<HD>::PANEL_BYTES + k % 4 * 32;
        wgmma_n128_ss<T>(s, describe_rows(queries + at), describe_rows(keys + at), k > 0);
    }
}

template <typename T, int HD>
__device__ __forceinline__ void begin_values(float (&o)[HD / 2], const uint32_t (&weights)[8][4], uint32_t values) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
        const uint64_t b = describe_columns(values + k * 16 * 128, Wide<HD>::PANEL_BYTES);
        if constexpr (HD == 128) {
            wgmma_n128_rs<T>(o, weights[k], b, 1);
        } else {
            wgmma_n64_rs<T>(o, weights[k], b, 1);
        }
    }
}

// Maximum and sum of the two rows that a thread has of its warpgroup's 64.
struct WideSoftmax {
    float maximum[2] = {-CUDART_INF_F, -CUDART_INF_F};
    float sum[2] = {0.0f, 0.0f};

    // Turns scores into weights; what was summed up before is to be multiplied by `correction`.
    __device__ __forceinline__ void add(float (&s)[64], float (&correction)[2], float scale_log2) {
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float largest = s[2 * r];
#pragma unroll
            for (int n = 0; n < 16; ++n) largest = fmaxf(largest, fmaxf(s[4 * n + 2 * r], s[4 * n + 2 * r + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            const float next = fmaxf(maximum[r], largest);
            const float base = next == -CUDART_INF_F ? 0.0f : next * scale_log2;
            correction[r] = fast_exp2(maximum[r] * scale_log2 - base);
            maximum[r] = next;
            float added = 0.0f;
#pragma unroll
            for (int n = 0; n < 16; ++n) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float &weight = s[4 * n + 2 * r + i];
                    weight = fast_exp2(weight * scale_log2 - base);
                    added += weight;
                }
            }
            sum[r] = sum[r] * correction[r] + added;
        }
    }
};

// Hides the scores of keys that a query does not see.
__device__ __forceinline__ void hide(float (&s)[64], const int (&positions)[2], int key, int window) {
    const int c = threadIdx.x % 4;
#pragma unroll
    for (int i = 0; i < 64; ++i) {
        const int distance = positions[i / 2 % 2] - (key + i / 4 * 8 + c * 2 + i % 2);
        if (distance < 0 || distance >= window) s[i] = -CUDART_INF_F;
    }
}

template <typename T>
__device__ __forceinline__ void pack_weights(uint32_t (&weights)[8][4], const float (&s)[64]) {
#pragma unroll
    for (int k = 0; k < 8; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int at = k * 8 + i / 2 * 4 + i % 2 * 2;
            weights[k][i] = Half<T>::pack(s[at], s[at + 1]);
        }
    }
}

// Zeroes values of a tile that no query sees: their weights are zero, but what is there may be no number.
template <int HD>
__device__ __forceinline__ void clear_unseen(char *values, int key, int low, int end) {
    using W = Wide<HD>;
    for (int i = threadIdx.x - 128; i < W::KEYS * W::PIECES; i += W::CONSUMER_THREADS) {
        const int row = i / W::PIECES, piece = i % W::PIECES;
        if (key + row >= low && key + row < end) continue;
        *reinterpret_cast<uint4 *>(values + piece / 8 * W::PANEL_BYTES + in_panel(row, piece % 8)) = make_uint4(0, 0, 0, 0);
    }
    publish_shared();
    meet(1, W::CONSUMER_THREADS);
}

// Starts the copies of a warpgroup's 64 queries, zeros where there is none.
template <typename T, int HD>
__device__ __forceinline__ void copy_queries(const PrefillParams &p, const WideTile &tile, uint32_t queries) {
    using W = Wide<HD>;
    const T *q = reinterpret_cast<const T *>(p.q) + int64_t(tile.tile.token) * p.q_stride + tile.head * HD;
    const int group = threadIdx.x / 128 - 1, span_mask = (1 << tile.tile.log2_span) - 1;
#pragma unroll 4
    for (int i = threadIdx.x % 128; i < 64 * W::PIECES; i += 128) {
        const int row = i / W::PIECES, piece = i % W::PIECES, query = group * 64 + row;
        const int token = query & span_mask, head = query >> tile.tile.log2_span;
        const bool is_there = token < tile.tile.num_tokens && head < tile.num_heads;
        const T *from = is_there ? q + int64_t(token) * p.q_stride + head * HD + piece * 8 : q;
        copy_async(queries + piece / 8 * W::PANEL_BYTES + in_panel(row, piece % 8), from, is_there);
    }
    commit_copies();
}

// A warpgroup that computes the results of 64 queries of each tile.
template <typename T, int HD>
__device__ __forceinline__ void compute_tiles(const WideParams &params, char *shared, uint32_t base,
        Barriers<Wide<HD>::STAGES> barriers) {
    using W = Wide<HD>;
    const PrefillParams &p = params.prefill;
    const int group = threadIdx.x / 128 - 1, warp = threadIdx.x / 32 - 4, lane = threadIdx.x % 32;
    const int g = lane / 4, c = lane % 4;
    const int first_row = warp * 16 + g;  // And the one 8 below.
    const int window = p.window > 0 ? p.window : INT32_MAX;
    uint32_t queries = base + group * 64 * 128, next_queries = queries + W::TILE_BYTES;
    const auto release = [&](int what, int stage) {
        if (lane == 0) arrive(barriers.empty(what, stage));
    };
    int n = 0;  // Tiles of keys so far.
    TileWalk walk{params};
    WideTile work, following;
    bool has_work = walk.next(work), has_following;
    if (has_work) copy_queries<T, HD>(p, work, queries);
    for (; has_work; has_work = has_following, work = following) {
        const QueryTile &tile = work.tile;
        const int low = work.low, end = work.end, first_key = low & ~(W::KEYS - 1);
        const int span_mask = (1 << tile.log2_span) - 1;
        const int positions[2] = {tile.position + (first_row & span_mask), tile.position + ((first_row + 8) & span_mask)};
        const auto is_cut = [&](int key) {
            return key + W::KEYS - 1 > tile.position || (p.window > 0 && key <= end - 1 - p.window);
        };
        const auto see_values = [&](int key, int stage) {
            wait_barrier(barriers.full(1, stage), W::parity(n));
            if (key < low || key + W::KEYS > end) {
                clear_unseen<HD>(shared + W::VALUES_AT + stage * W::TILE_BYTES, key, low, end);
            }
        };
        float s[64], o[HD / 2] = {};
        uint32_t weights[8][4];
        float correction[2];
        WideSoftmax softmax;
        has_following = walk.next(following);
        wait_copies<0>();
        publish_shared();
        meet(2 + group, 128);  // And all warps have read the last queries.
        if (first_key < end) {
            wait_barrier(barriers.full(0, W::stage(n)), W::parity(n));
            begin_products();
            begin_scores<T, HD>(s, queries, base + W::KEYS_AT + W::stage(n) * W::TILE_BYTES);
            commit_products();
            wait_products<0>();
            pin(s);
            release(0, W::stage(n));
        }
        if (has_following) copy_queries<T, HD>(p, following, next_queries);
        if (first_key < end) {
            if (is_cut(first_key)) hide(s, positions, first_key, window);
            softmax.add(s, correction, p.scale_log2);
            pack_weights<T>(weights, s);
        }
        for (int key = first_key + W::KEYS; key < end; key += W::KEYS, ++n) {
            const int stage = W::stage(n), next_stage = W::stage(n + 1);
            wait_barrier(barriers.full(0, next_stage), W::parity(n + 1));
            see_values(key - W::KEYS, stage);
            pin(s);
            pin(o);
            begin_products();
            begin_scores<T, HD>(s, queries, base + W::KEYS_AT + next_stage * W::TILE_BYTES);
            commit_products();
            begin_values<T, HD>(o, weights, base + W::VALUES_AT + stage * W::TILE_BYTES);
            commit_products();
            wait_products<1>();
            pin(s);
            release(0, next_stage);
            if (is_cut(key)) hide(s, positions, key, window);
            softmax.add(s, correction, p.scale_log2);
            wait_products<0>();
            pin(o);
            release(1, stage);
            pack_weights<T>(weights, s);
#pragma unroll
            for (int i = 0; i < HD / 2; ++i) o[i] *= correction[i / 2 % 2];
        }
        if (first_key < end) {
            const int stage = W::stage(n);
            see_values((end - 1) & ~(W::KEYS - 1), stage);
            pin(o);
            begin_products();
            begin_values<T, HD>(o, weights, base + W::VALUES_AT + stage * W::TILE_BYTES);
            commit_products();
            wait_products<0>();
            pin(o);
            release(1, stage);
            ++n;
        }
        T *out = reinterpret_cast<T *>(p.out) + int64_t(tile.token) * p.out_stride + work.head * HD;
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float total = softmax.sum[r];
            total += __shfl_xor_sync(0xffffffffu, total, 1);
            total += __shfl_xor_sync(0xffffffffu, total, 2);
            const float factor = total > 0.0f ? 1.0f / total : 0.0f;
            const int row = first_row + r * 8;
            const int token = row & span_mask, head = row >> tile.log2_span;
            if (token >= tile.num_tokens || head >= work.num_heads) continue;
            T *at = out + int64_t(token) * p.out_stride + head * HD + c * 2;
#pragma unroll
            for (int i = 0; i < HD / 8; ++i) {
                *reinterpret_cast<uint32_t *>(at + i * 8) =
                    Half<T>::pack(o[4 * i + 2 * r] * factor, o[4 * i + 2 * r + 1] * factor);
            }
        }
        const uint32_t read = queries;
        queries = next_queries, next_queries = read;
    }
}

template <typename T, int HD>
__device__ __forceinline__ void prefill_wide(const WideParams &p) {
    using W = Wide<HD>;
    extern __shared__ __align__(1024) char unaligned[];
    const uint32_t start = shared_address(unaligned), base = (start + 1023) & ~1023u;
    const Barriers<W::STAGES> barriers{base + W::BARRIERS_AT};
    if (threadIdx.x == 0) {
        for (int i = 0; i < 2 * W::STAGES; ++i) {
            init_barrier(barriers.full(i / W::STAGES, i % W::STAGES), W::PANELS);
            init_barrier(barriers.empty(i / W::STAGES, i % W::STAGES), W::CONSUMER_THREADS / 32);
        }
        asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
    }
    wait_for_previous();
    __syncthreads();
    if (threadIdx.x < 128) {
        give_registers<24>();
        const int what = threadIdx.x / 32 % 2, panel = threadIdx.x / 64;
        if (panel < W::PANELS) copy_tiles<HD>(p, what, panel, base, barriers);
    } else {
        take_registers<240>();
        compute_tiles<T, HD>(p, unaligned + (base - start), base, barriers);
    }
}

}  // namespace attention
#endif

#if defined(__CUDA_ARCH_FEAT_SM90_ALL)
#define ATTENTION_PREFILL_WGMMA(SUFFIX, T, HD)                                                    \
    extern "C" __global__ void __launch_bounds__(384, 1)                                          \
        attention_prefill_wgmma_##SUFFIX##_##HD(const __grid_constant__ attention::WideParams p) { \
        attention::prefill_wide<T, HD>(p);                                                        \
    }
#else
#define ATTENTION_PREFILL_WGMMA(SUFFIX, T, HD)
#endif
