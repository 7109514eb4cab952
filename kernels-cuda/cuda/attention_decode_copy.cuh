// Decode attention: the copies of keys and values that a warp has under way.
#pragma once

#include "attention_decode_shape.cuh"

namespace attention {

// Where a warp's copies have got to.
struct Cursor {
    int segment;
    int key;  // Of the unit.
    int low;  // First visible key.
    int end;
    int first_new;
    const int *table;
    int blocks[2];  // Of the warp's first and second 8 keys.
};

template <typename T, typename S, int HD>
struct DecodeWarp {
    using D = Decode<T, S, HD>;
    using M = typename D::M;

    const DecodeParams &p;
    const Segment *segments;
    const char *kv;  // Of this head.
    int64_t values_offset;
    uint32_t stages;
    int warp, lane, end_segment;
    Cursor cursor;
    Segment ahead;  // The one after the cursor's.

    __device__ __forceinline__ DecodeWarp(const DecodeParams &params, uint32_t stages_address, int kv_head)
        : p(params),
          segments(reinterpret_cast<const Segment *>(params.segments)),
          kv(reinterpret_cast<const char *>(params.blocks) +
             (int64_t(kv_head) * HD << params.block_shift) * sizeof(S)),
          values_offset((int64_t(params.num_kv_heads) * HD << params.block_shift) * sizeof(S)),
          stages(stages_address),
          warp(threadIdx.x / 32),
          lane(threadIdx.x % 32) {}

    __device__ __forceinline__ int lowest(const Segment &s) const {
        return p.window > 0 ? max(s.first_key, s.position - p.window + 1) : s.first_key;
    }

    __device__ __forceinline__ void start(int segment, int end) {
        cursor.segment = segment;
        end_segment = end;
        if (segment < end) ahead = segments[segment];
        enter_segment();
    }

    // Moves the cursor to the first unit of the segment ahead; an empty one is skipped.
    __device__ __forceinline__ void enter_segment() {
        while (cursor.segment < end_segment) {
            const Segment s = ahead;
            if (cursor.segment + 1 < end_segment) ahead = segments[cursor.segment + 1];
            cursor.low = lowest(s);
            cursor.key = cursor.low & ~(UNIT_KEYS - 1);
            cursor.end = s.end_key;
            cursor.first_new = s.first_new;
            cursor.table = reinterpret_cast<const int *>(p.block_tables) + int64_t(s.row) * p.table_stride;
            if (cursor.key < cursor.end) break;
            ++cursor.segment;
        }
        look_up();
    }

    // Whether the next unit holds keys that the kernel before this one may be writing.
    __device__ __forceinline__ bool is_new() const {
        return cursor.segment < end_segment && cursor.key + UNIT_KEYS > cursor.first_new;
    }

    __device__ __forceinline__ void look_up() {
        if (cursor.segment >= end_segment) return;
#pragma unroll
        for (int half = 0; half < 2; ++half) {
            const int key = cursor.key + warp * WARP_KEYS + half * 8;
            const bool is_seen = key < cursor.end && key + 8 > cursor.low;
            cursor.blocks[half] = is_seen ? __ldg(cursor.table + (key >> p.block_shift)) : 0;
        }
    }

    // Starts the copies of the next unit to a stage.
    __device__ __forceinline__ void copy(int stage) {
        if (cursor.segment < end_segment) {
            const uint32_t to = stages + stage * D::STAGE_BYTES;
            const int mask = (1 << p.block_shift) - 1;
#pragma unroll
            for (int i = 0; i < (WARP_KEYS * D::PIECES + 31) / 32; ++i) {
                const int piece = lane + 32 * i;
                const int row = piece / D::PIECES, column = piece % D::PIECES;
                if (WARP_KEYS * D::PIECES % 32 != 0 && row >= WARP_KEYS) break;
                const int key = cursor.key + warp * WARP_KEYS + row;
                const bool is_seen = key >= cursor.low && key < cursor.end;
                const int block = row < 8 ? cursor.blocks[0] : cursor.blocks[1];
                const char *from =
                    kv + block * p.block_bytes + ((key & mask) * D::PIECES + column) * 16;
                const uint32_t at = to + D::place(row, column * 16);
                copy_async(at, from, is_seen);
                copy_async(at + D::TILE_BYTES, from + values_offset, is_seen);
            }
            cursor.key += UNIT_KEYS;
            if (cursor.key >= cursor.end) {
                ++cursor.segment;
                enter_segment();
            } else {
                look_up();
            }
        }
        commit_copies();
    }
};

}  // namespace attention
