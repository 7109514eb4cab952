// Decode attention: what the kernels are given, and how a block lies in shared memory.
#pragma once

#include "attention_common.cuh"

namespace attention {

constexpr int DECODE_WARPS = 4;
constexpr int WARP_KEYS = 16;
constexpr int UNIT_KEYS = DECODE_WARPS * WARP_KEYS;
constexpr int CLUSTER_BLOCKS = 8;

// Blocks that a multiprocessor should hold.
template <int HD>
constexpr int DECODE_BLOCKS = HD > 128 ? 1 : HD > 64 ? 2 : 3;

// A range of keys of one query token. Written by the plan.
struct __align__(16) Segment {
    int row;         // Of the block table.
    int token;       // Row of q and out.
    int first_key;   // A multiple of UNIT_KEYS.
    int end_key;     // At most position + 1; 0 for a padded row.
    int position;    // Of the query.
    int first_new;   // The first key that this step writes.
    int first_part;  // Number of the row's first part among all parts; also the number of its counter.
    int parts;       // Number of this part in the row, and of the row's parts from bit 16 on.

    __device__ __forceinline__ int part() const { return parts & 0xffff; }
    __device__ __forceinline__ int num_parts() const { return parts >> 16; }
};

struct DecodeParams {
    uint64_t q;             // T
    uint64_t out;           // T
    uint64_t blocks;        // Start of the layer's cache.
    uint64_t block_tables;  // int32
    uint64_t segments;      // Segment
    uint64_t run_starts;    // int32, one more than runs
    uint64_t counters;      // int32, zero; zero again afterwards
    uint64_t parts;         // float [num_parts, grid.y, 16, head_dim]
    uint64_t part_stats;    // float2 [num_parts, grid.y, 16]: maximum and sum
    int64_t block_bytes;
    int32_t q_stride;
    int32_t out_stride;
    int32_t table_stride;
    int32_t block_shift;
    int32_t num_kv_heads;
    int32_t group;    // Query heads of a key and value head.
    int32_t window;   // 0: none.
    float scale_log2;   // Of the scores, with log2(e).
    float value_scale;  // Of the results.
};

template <typename T, typename S, int HD>
struct Decode {
    using M = typename Operand<T, S>::Type;
    static constexpr bool IS_FP8 = sizeof(S) == 1;
    static constexpr int ROW_BYTES = HD * int(sizeof(S));
    static constexpr int K_STEPS = HD / 16;
    static constexpr int N_TILES = HD / 8;
    static constexpr int PIECES = ROW_BYTES / 16;  // Of a key.

    // Rows of whole 128 bytes have their pieces permuted by the row's number, others are padded: either spreads the
    // banks.
    static constexpr bool IS_PERMUTED = ROW_BYTES % 128 == 0;
    static constexpr int PITCH = IS_PERMUTED || (IS_FP8 && HD == 80) ? ROW_BYTES : ROW_BYTES + 16;
    static constexpr int TILE_BYTES = WARP_KEYS * PITCH;
    static constexpr int STAGE_BYTES = 2 * TILE_BYTES;  // Of a warp: keys and values.
    static __device__ __forceinline__ uint32_t place(int row, int byte) {
        return row * PITCH + (IS_PERMUTED ? byte ^ ((row & 7) * 16) : byte);
    }

    // A warp's result for the others, [16, HD] floats: where its last 16-bit keys and values were, or apart.
    static constexpr int SUM_PITCH = HD % 64 == 0 ? HD : HD + 8;
    static constexpr int SUM_BYTES = 16 * SUM_PITCH * 4;
    static_assert(IS_FP8 || SUM_BYTES <= STAGE_BYTES, "the result takes the place of a stage");
    static __device__ __forceinline__ int sum_place(int row, int dim) {
        return row * SUM_PITCH + (HD % 64 == 0 ? dim ^ ((row & 7) * 8) : dim);
    }

    static constexpr int SUMS_BYTES = IS_FP8 ? DECODE_WARPS * SUM_BYTES : 0;
    static constexpr int STATS_BYTES = DECODE_WARPS * 16 * 8;
    static constexpr int BLOCKS = DECODE_BLOCKS<HD>;
    static constexpr int WANTED = (SHARED_LIMIT / BLOCKS - 1024 - SUMS_BYTES - STATS_BYTES - 16) / (DECODE_WARPS * STAGE_BYTES);
    static constexpr int STAGES = WANTED < 1 ? 1 : WANTED > 6 ? 6 : WANTED;
    static constexpr int STAGES_BYTES = DECODE_WARPS * STAGES * STAGE_BYTES;
    static constexpr int SUMS_AT = STAGES_BYTES;
    static constexpr int STATS_AT = SUMS_AT + SUMS_BYTES;
    static constexpr int FLAG_AT = STATS_AT + STATS_BYTES;
    static constexpr int SHARED_BYTES = FLAG_AT + 16;
};

}  // namespace attention
