// Attention of rows that compute many tokens: tiles of 128 queries against tiles of 64 keys.
//
// FlashAttention-2 (Dao, 2023) over a paged cache. A tile of queries is 2^t tokens times 128 / 2^t query heads of one
// group: short chunks fill it with heads. Each warp has 16 or 32 of its rows, with their softmax and results in
// registers; keys and values of the next tile, and the block ids of the one after it, are copied meanwhile. An 8-bit
// cache is copied as it is and becomes halves on its way from one place in shared memory to another.
//
//   grid   (num_heads, tiles)   threads 32 * WARPS   shared: Prefill::SHARED_BYTES
//   A block whose head is not the first of its tile, or whose tile is empty, has nothing to do. The plan sorts the
//   tiles by work, the most first, so that the last to run are short.
#pragma once

#include "attention_common.cuh"

namespace attention {

constexpr int TILE_QUERIES = 128;
constexpr int TILE_KEYS = 64;
constexpr int MAX_TILE_BLOCKS = TILE_KEYS / 8;

// Consecutive query tokens of one row. Written by the plan.
struct __align__(16) QueryTile {
    int row;         // Of the block table.
    int token;       // First row of q and out.
    int num_tokens;  // 0: an empty tile.
    int position;    // Of the first token.
    int log2_span;   // The tile has 2^log2_span tokens by as many heads as fill it.
    int is_padding;  // Results are zero.
    int unused[2];
};

struct PrefillParams {
    uint64_t q;             // T
    uint64_t out;           // T
    uint64_t blocks;        // Start of the layer's cache.
    uint64_t block_tables;  // int32
    uint64_t tiles;         // QueryTile
    int64_t block_bytes;
    int32_t q_stride;
    int32_t out_stride;
    int32_t table_stride;
    int32_t block_shift;
    int32_t num_kv_heads;
    int32_t group;
    int32_t window;    // 0: none.
    float scale_log2;   // Of the scores, with log2(e).
    float value_scale;  // Of the results.
};

template <typename T, typename S, int HD>
struct Prefill {
    using M = typename Operand<T, S>::Type;
    static constexpr bool IS_FP8 = sizeof(S) == 1;
    static constexpr int WARPS = HD > 128 ? 8 : 4;
    static constexpr int THREADS = WARPS * 32;
    static constexpr int M_TILES = TILE_QUERIES / 16 / WARPS;  // Of 16 rows, a warp.
    static constexpr int K_STEPS = HD / 16;
    static constexpr int N_TILES = HD / 8;
    static constexpr int PITCH = HD * 2 + 16;
    static constexpr int QUERY_BYTES = TILE_QUERIES * PITCH;
    static constexpr int KEY_BYTES = TILE_KEYS * PITCH;
    static constexpr int IDS_BYTES = 3 * MAX_TILE_BLOCKS * 4;
    static constexpr int STAGES = !IS_FP8 && QUERY_BYTES + 4 * KEY_BYTES + IDS_BYTES <= SHARED_LIMIT ? 2 : 1;
    static constexpr int RAW_BYTES = IS_FP8 ? TILE_KEYS * HD : 0;
    static constexpr int KEYS_AT = QUERY_BYTES;
    static constexpr int RAW_AT = KEYS_AT + STAGES * 2 * KEY_BYTES;
    static constexpr int IDS_AT = RAW_AT + 2 * RAW_BYTES;
    static constexpr int SHARED_BYTES = IDS_AT + IDS_BYTES;
    static constexpr int PIECES = HD * int(sizeof(S)) / 16;
};

__device__ __forceinline__ void copy_async4(uint32_t to, const void *from) {
    asm volatile("cp.async.ca.shared.global [%0], [%1], 4;" ::"r"(to), "l"(from) : "memory");
}

template <typename T, typename S, int HD>
struct PrefillBlock {
    using P = Prefill<T, S, HD>;
    using M = typename P::M;

    const PrefillParams &p;
    const char *kv;
    const int *table;
    char *shared;
    uint32_t base;
    int64_t values_offset;
    int low, end;  // Keys that some query of the tile sees.

    // Starts the copy of the block ids of the tile that starts at `key`.
    __device__ __forceinline__ void copy_ids(int key, int slot) const {
        const int num_blocks = TILE_KEYS >> p.block_shift;
        const int at = key + (threadIdx.x << p.block_shift);
        if (threadIdx.x < num_blocks && at < end && at + (1 << p.block_shift) > low) {
            copy_async4(base + P::IDS_AT + (slot * MAX_TILE_BLOCKS + threadIdx.x) * 4, table + (at >> p.block_shift));
        }
    }

    // Starts the copies of keys and values of a tile.
    __device__ __forceinline__ void copy_tile(int key, int ids_slot, int stage) const {
        const int *ids = reinterpret_cast<const int *>(shared + P::IDS_AT) + ids_slot * MAX_TILE_BLOCKS;
        const int mask = (1 << p.block_shift) - 1;
        constexpr int PITCH = P::IS_FP8 ? HD : P::PITCH;
        const uint32_t to = base + (P::IS_FP8 ? P::RAW_AT : P::KEYS_AT + stage * 2 * P::KEY_BYTES);
        constexpr int VALUES = P::IS_FP8 ? P::RAW_BYTES : P::KEY_BYTES;
#pragma unroll
        for (int i = 0; i < (TILE_KEYS * P::PIECES + P::THREADS - 1) / P::THREADS; ++i) {
            const int piece = threadIdx.x + i * P::THREADS;
            const int row = piece / P::PIECES, column = piece % P::PIECES;
            if (TILE_KEYS * P::PIECES % P::THREADS != 0 && row >= TILE_KEYS) break;
            const int at = key + row;
            const bool is_seen = at >= low && at < end;
            const int block = is_seen ? ids[row >> p.block_shift] : 0;
            const char *from = kv + block * p.block_bytes + ((at & mask) * P::PIECES + column) * 16;
            const uint32_t place = to + row * PITCH + column * 16;
            copy_async(place, from, is_seen);
            copy_async(place + VALUES, from + values_offset, is_seen);
        }
    }

    // Turns the 8-bit elements that this thread has copied into halves.
    __device__ __forceinline__ void widen() const {
#pragma unroll
        for (int i = 0; i < (TILE_KEYS * P::PIECES + P::THREADS - 1) / P::THREADS; ++i) {
            const int piece = threadIdx.x + i * P::THREADS;
            const int row = piece / P::PIECES, column = piece % P::PIECES;
            if (TILE_KEYS * P::PIECES % P::THREADS != 0 && row >= TILE_KEYS) break;
#pragma unroll
            for (int half = 0; half < 2; ++half) {
                const uint4 raw = *reinterpret_cast<const uint4 *>(shared + P::RAW_AT + half * P::RAW_BYTES + piece * 16);
                uint4 *to = reinterpret_cast<uint4 *>(shared + P::KEYS_AT + half * P::KEY_BYTES + row * P::PITCH + column * 32);
                to[0] = make_uint4(fp8x2_to_half2<S>(raw.x), fp8x2_to_half2<S>(raw.x >> 16), fp8x2_to_half2<S>(raw.y),
                                   fp8x2_to_half2<S>(raw.y >> 16));
                to[1] = make_uint4(fp8x2_to_half2<S>(raw.z), fp8x2_to_half2<S>(raw.z >> 16), fp8x2_to_half2<S>(raw.w),
                                   fp8x2_to_half2<S>(raw.w >> 16));
            }
        }
    }

    // Loads the queries of the tile, zeros where there is none.
    __device__ __forceinline__ void load_queries(const QueryTile &tile, const T *q, int num_heads) const {
        constexpr int PIECES = HD / 8;
        const int mask = (1 << tile.log2_span) - 1;
        for (int piece = threadIdx.x; piece < TILE_QUERIES * PIECES; piece += P::THREADS) {
            const int row = piece / PIECES, column = piece % PIECES;
            const int token = row & mask, head = row >> tile.log2_span;
            uint4 eight = make_uint4(0, 0, 0, 0);
            if (token < tile.num_tokens && head < num_heads) {
                eight = *reinterpret_cast<const uint4 *>(q + int64_t(token) * p.q_stride + head * HD + column * 8);
            }
            eight.x = convert2<T, M>(eight.x), eight.y = convert2<T, M>(eight.y);
            eight.z = convert2<T, M>(eight.z), eight.w = convert2<T, M>(eight.w);
            *reinterpret_cast<uint4 *>(shared + row * P::PITCH + column * 16) = eight;
        }
    }
};

// One block: all keys that its tile sees.
template <typename T, typename S, int HD>
__device__ __forceinline__ void prefill(const PrefillParams &p) {
    using P = Prefill<T, S, HD>;
    using M = typename P::M;
    constexpr int MT = P::M_TILES;
    extern __shared__ __align__(128) char shared[];

    const QueryTile tile = reinterpret_cast<const QueryTile *>(p.tiles)[blockIdx.y];
    const int kv_head = blockIdx.x / p.group, first_head = blockIdx.x % p.group;
    const int tile_heads = TILE_QUERIES >> tile.log2_span;
    if (tile.num_tokens == 0 || first_head % tile_heads != 0) return;
    const int num_heads = min(tile_heads, p.group - first_head);
    const int q_column = blockIdx.x * HD;
    const int last_position = tile.position + tile.num_tokens - 1;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;

    PrefillBlock<T, S, HD> block{p,
                                 reinterpret_cast<const char *>(p.blocks) +
                                     (int64_t(kv_head) * HD << p.block_shift) * int(sizeof(S)),
                                 reinterpret_cast<const int *>(p.block_tables) + int64_t(tile.row) * p.table_stride,
                                 shared,
                                 shared_address(shared),
                                 (int64_t(p.num_kv_heads) * HD << p.block_shift) * int(sizeof(S)),
                                 p.window > 0 ? max(0, tile.position - p.window + 1) : 0,
                                 tile.is_padding ? 0 : last_position + 1};
    const int first_key = block.low & ~(TILE_KEYS - 1);
    wait_for_previous();
    block.copy_ids(first_key, 0);
    block.copy_ids(first_key + TILE_KEYS, 1);
    commit_copies();
    block.load_queries(tile, reinterpret_cast<const T *>(p.q) + int64_t(tile.token) * p.q_stride + q_column, num_heads);
    wait_copies<0>();
    __syncthreads();
    block.copy_tile(first_key, 0, 0);
    commit_copies();

    const int mask = (1 << tile.log2_span) - 1;
    int positions[2 * MT];
#pragma unroll
    for (int r = 0; r < 2 * MT; ++r) {
        positions[r] = tile.position + (((warp * MT + r / 2) * 16 + g + r % 2 * 8) & mask);
    }
    float o[MT][P::N_TILES][4] = {};
    float maximum[2 * MT], sum[2 * MT];
#pragma unroll
    for (int r = 0; r < 2 * MT; ++r) maximum[r] = -CUDART_INF_F, sum[r] = 0.0f;

    const uint32_t q_at = block.base + (warp * MT * 16 + lane % 16) * P::PITCH + lane / 16 * 16;
    const uint32_t k_lane = (lane / 16 * 8 + lane % 8) * P::PITCH + lane / 8 % 2 * 16;
    const uint32_t v_lane = (lane / 8 % 2 * 8 + lane % 8) * P::PITCH + lane / 16 * 16;
    int stage = 0, ids = 1;
    for (int key = first_key; key < block.end; key += TILE_KEYS) {
        wait_copies<0>();
        if constexpr (P::IS_FP8) block.widen();
        __syncthreads();
        const auto copy_next = [&] {
            if (key + TILE_KEYS >= block.end) return;
            block.copy_tile(key + TILE_KEYS, ids, (stage + 1) % P::STAGES);
            ids = ids == 2 ? 0 : ids + 1;
            block.copy_ids(key + 2 * TILE_KEYS, ids);
            commit_copies();
        };
        if (P::IS_FP8 || P::STAGES == 2) copy_next();
        const uint32_t keys = block.base + P::KEYS_AT + stage * 2 * P::KEY_BYTES;
        const uint32_t values = keys + P::KEY_BYTES;
        float s[MT][TILE_KEYS / 8][4] = {};
#pragma unroll
        for (int k = 0; k < P::K_STEPS; ++k) {
            uint32_t q[MT][4];
#pragma unroll
            for (int m = 0; m < MT; ++m) load_matrices(q[m], q_at + m * 16 * P::PITCH + k * 32);
#pragma unroll
            for (int n = 0; n < TILE_KEYS / 8; n += 2) {
                uint32_t b[4];
                load_matrices(b, keys + k_lane + n * 8 * P::PITCH + k * 32);
#pragma unroll
                for (int m = 0; m < MT; ++m) {
                    Half<M>::mma(s[m][n], q[m], b[0], b[1]);
                    Half<M>::mma(s[m][n + 1], q[m], b[2], b[3]);
                }
            }
        }
        const bool is_cut = key + TILE_KEYS - 1 > tile.position || (p.window > 0 && key <= last_position - p.window);
        if (is_cut) {
            const int window = p.window > 0 ? p.window : INT32_MAX;
#pragma unroll
            for (int m = 0; m < MT; ++m) {
#pragma unroll
                for (int n = 0; n < TILE_KEYS / 8; ++n) {
#pragma unroll
                    for (int i = 0; i < 4; ++i) {
                        const int distance = positions[2 * m + i / 2] - (key + n * 8 + c * 2 + i % 2);
                        if (distance < 0 || distance >= window) s[m][n][i] = -CUDART_INF_F;
                    }
                }
            }
        }
#pragma unroll
        for (int m = 0; m < MT; ++m) {
            float correction[2];
#pragma unroll
            for (int r = 0; r < 2; ++r) {
                float largest = -CUDART_INF_F;
#pragma unroll
                for (int n = 0; n < TILE_KEYS / 8; ++n) {
                    largest = fmaxf(largest, fmaxf(s[m][n][2 * r], s[m][n][2 * r + 1]));
                }
                largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
                largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
                float &before = maximum[2 * m + r];
                const float next = fmaxf(before, largest);
                const float base = next == -CUDART_INF_F ? 0.0f : next * p.scale_log2;
                correction[r] = fast_exp2(before * p.scale_log2 - base);
                before = next;
                float added = 0.0f;
#pragma unroll
                for (int n = 0; n < TILE_KEYS / 8; ++n) {
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        float &weight = s[m][n][2 * r + i];
                        weight = fast_exp2(weight * p.scale_log2 - base);
                        added += weight;
                    }
                }
                sum[2 * m + r] = sum[2 * m + r] * correction[r] + added;
            }
#pragma unroll
            for (int tile = 0; tile < P::N_TILES; ++tile) {
#pragma unroll
                for (int i = 0; i < 4; ++i) o[m][tile][i] *= correction[i / 2];
            }
        }
#pragma unroll
        for (int k = 0; k < TILE_KEYS / 16; ++k) {
            uint32_t weights[MT][4];
#pragma unroll
            for (int m = 0; m < MT; ++m) {
#pragma unroll
                for (int i = 0; i < 4; ++i) {
                    const float(&pair)[4] = s[m][2 * k + i / 2];
                    weights[m][i] = Half<M>::pack(pair[i % 2 * 2], pair[i % 2 * 2 + 1]);
                }
            }
#pragma unroll
            for (int n = 0; n < P::N_TILES; n += 2) {
                uint32_t b[4];
                load_matrices_transposed(b, values + v_lane + k * 16 * P::PITCH + n * 16);
#pragma unroll
                for (int m = 0; m < MT; ++m) {
                    Half<M>::mma(o[m][n], weights[m], b[0], b[1]);
                    Half<M>::mma(o[m][n + 1], weights[m], b[2], b[3]);
                }
            }
        }
        stage = (stage + 1) % P::STAGES;
        if constexpr (P::STAGES == 1) {
            __syncthreads();
            if (!P::IS_FP8) copy_next();
        }
    }

    T *out = reinterpret_cast<T *>(p.out) + int64_t(tile.token) * p.out_stride + q_column;
#pragma unroll
    for (int r = 0; r < 2 * MT; ++r) {
        float total = sum[r];
        total += __shfl_xor_sync(0xffffffffu, total, 1);
        total += __shfl_xor_sync(0xffffffffu, total, 2);
        const float factor = total > 0.0f ? p.value_scale / total : 0.0f;
        const int row = (warp * MT + r / 2) * 16 + g + r % 2 * 8;
        const int token = row & mask, head = row >> tile.log2_span;
        if (token >= tile.num_tokens || head >= num_heads) continue;
        T *at = out + int64_t(token) * p.out_stride + head * HD + c * 2;
#pragma unroll
        for (int n = 0; n < P::N_TILES; ++n) {
            const float(&four)[4] = o[r / 2][n];
            *reinterpret_cast<uint32_t *>(at + n * 8) =
                Half<T>::pack(four[r % 2 * 2] * factor, four[r % 2 * 2 + 1] * factor);
        }
    }
}

}  // namespace attention

#define ATTENTION_PREFILL(NAME, T, S, HD)                                                                \
    extern "C" __global__ void __launch_bounds__((HD) > 128 ? 256 : 128, (HD) > 128 ? 1 : 2)             \
        NAME(const __grid_constant__ attention::PrefillParams p) {                                       \
        attention::prefill<T, S, HD>(p);                                                                 \
    }

#define ATTENTION_PREFILL_HEADS(SUFFIX, T, S)                      \
    ATTENTION_PREFILL(attention_prefill_##SUFFIX##_64, T, S, 64)   \
    ATTENTION_PREFILL(attention_prefill_##SUFFIX##_80, T, S, 80)   \
    ATTENTION_PREFILL(attention_prefill_##SUFFIX##_96, T, S, 96)   \
    ATTENTION_PREFILL(attention_prefill_##SUFFIX##_128, T, S, 128) \
    ATTENTION_PREFILL(attention_prefill_##SUFFIX##_256, T, S, 256)
