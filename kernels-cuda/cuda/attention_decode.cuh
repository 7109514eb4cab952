// Attention of rows that compute one token: split over the sequence, the query heads of a group together.
//
// A plan made on the host cuts all rows into as many equal runs of keys as blocks run at once (LeanAttention,
// Sanovar et al., 2024; FlashInfer, Ye et al., 2025); a run is a list of segments, one row each. A block has four
// warps. A unit of keys is 64; each warp loads its own 16 of them by asynchronous copies, several units ahead and
// past the end of a segment, and keeps a softmax of its own (Flash-Decoding, Dao et al., 2023), so that warps meet
// only at the end of a segment. The (up to) 16 query heads are the rows of the tensor core's product. The last block
// to finish a row that was cut merges its parts, in order.
//
//   grid    (runs, kv heads * tiles of 16 query heads)     threads 128     shared: Decode::SHARED_BYTES
//   q, out  [num_tokens, num_heads * head_dim], rows apart by a stride
//   block   keys [num_kv_heads, block_size, head_dim], then values alike
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
    float scale_log2;  // Of the scores, with log2(e).
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

// The query heads of a tile as left operands; rows beyond the group are zero.
template <typename T, typename S, int HD>
__device__ __forceinline__ void load_queries(uint32_t (&a)[HD / 16][4], const T *q, int num_heads) {
    using D = Decode<T, S, HD>;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int k = 0; k < HD / 16; ++k) {
#pragma unroll
        for (int i = 0; i < 4; ++i) {
            const int head = g + (i % 2) * 8;
            const int dim = k * 16 + (D::IS_FP8 ? c * 4 + (i / 2) * 2 : c * 2 + (i / 2) * 8);
            uint32_t pair = 0;
            if (head < num_heads) pair = *reinterpret_cast<const uint32_t *>(q + head * HD + dim);
            a[k][i] = convert2<T, typename D::M>(pair);
        }
    }
}

// s = q k^T for the warp's 16 keys.
template <typename T, typename S, int HD>
__device__ __forceinline__ void score(float (&s)[2][4], const uint32_t (&q)[HD / 16][4], uint32_t keys) {
    using D = Decode<T, S, HD>;
    using M = typename D::M;
    const int lane = threadIdx.x % 32;
#pragma unroll
    for (int i = 0; i < 4; ++i) s[0][i] = s[1][i] = 0.0f;
    if constexpr (D::IS_FP8) {
#pragma unroll
        for (int k = 0; k < D::K_STEPS; ++k) {
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const uint32_t four = load_shared32(keys + D::place(lane / 4 + n * 8, k * 16 + lane % 4 * 4));
                Half<M>::mma(s[n], q[k], fp8x2_to_half2<S>(four), fp8x2_to_half2<S>(four >> 16));
            }
        }
    } else {
#pragma unroll
        for (int k = 0; k < D::K_STEPS; ++k) {
            uint32_t b[4];
            load_matrices(b, keys + D::place(lane / 16 * 8 + lane % 8, k * 32 + lane / 8 % 2 * 16));
            Half<M>::mma(s[0], q[k], b[0], b[1]);
            Half<M>::mma(s[1], q[k], b[2], b[3]);
        }
    }
}

// o += weights times the warp's 16 values.
template <typename T, typename S, int HD>
__device__ __forceinline__ void weigh(float (&o)[HD / 8][4], const uint32_t (&weights)[4], uint32_t values) {
    using D = Decode<T, S, HD>;
    using M = typename D::M;
    const int lane = threadIdx.x % 32;
    if constexpr (D::IS_FP8) {
#pragma unroll
        for (int start = 0; start < HD; start += 32) {
            uint32_t rows[4];
            const bool is_whole = start + 32 <= HD;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int row = lane % 4 * 2 + i / 2 * 8 + i % 2;
                rows[i] = is_whole ? load_shared32(values + D::place(row, start + lane / 4 * 4))
                                   : load_shared16(values + D::place(row, start + lane / 4 * 2));
            }
#pragma unroll
            for (int pair = 0; pair < (is_whole ? 2 : 1); ++pair) {
                const uint32_t low = __byte_perm(rows[0], rows[1], pair == 0 ? 0x5140 : 0x7362);
                const uint32_t high = __byte_perm(rows[2], rows[3], pair == 0 ? 0x5140 : 0x7362);
                const int tile = start / 8 + pair * 2;
                Half<M>::mma(o[tile], weights, fp8x2_to_half2<S>(low), fp8x2_to_half2<S>(high));
                Half<M>::mma(o[tile + 1], weights, fp8x2_to_half2<S>(low >> 16), fp8x2_to_half2<S>(high >> 16));
            }
        }
    } else {
#pragma unroll
        for (int tile = 0; tile < D::N_TILES; tile += 2) {
            uint32_t b[4];
            load_matrices_transposed(b, values + D::place(lane / 8 % 2 * 8 + lane % 8, tile * 16 + lane / 16 * 16));
            Half<M>::mma(o[tile], weights, b[0], b[1]);
            Half<M>::mma(o[tile + 1], weights, b[2], b[3]);
        }
    }
}

// Maximum and sum of the softmax of the two rows that a thread holds, and the weighted values.
template <int HD>
struct Softmax {
    float maximum[2] = {-CUDART_INF_F, -CUDART_INF_F};
    float sum[2] = {0.0f, 0.0f};  // Of this thread's columns.
    float o[HD / 8][4] = {};

    // Takes in the scores of 16 keys, the first at `key`; gives their weights as a left operand.
    template <typename M>
    __device__ __forceinline__ void add(uint32_t (&weights)[4], float (&s)[2][4], float scale_log2, int key, int low,
                                        int end) {
        const int c = threadIdx.x % 4;
        const bool is_cut = key < low || key + WARP_KEYS > end;
        float correction[2];
#pragma unroll
        for (int n = 0; n < 2; ++n) {
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const int at = key + n * 8 + c * 2 + i % 2;
                s[n][i] = is_cut && (at < low || at >= end) ? -CUDART_INF_F : s[n][i] * scale_log2;
            }
        }
#pragma unroll
        for (int r = 0; r < 2; ++r) {
            float largest = fmaxf(fmaxf(s[0][2 * r], s[0][2 * r + 1]), fmaxf(s[1][2 * r], s[1][2 * r + 1]));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 1));
            largest = fmaxf(largest, __shfl_xor_sync(0xffffffffu, largest, 2));
            const float next = fmaxf(maximum[r], largest);
            const float base = next == -CUDART_INF_F ? 0.0f : next;
            correction[r] = fast_exp2(maximum[r] - base);
            maximum[r] = next;
            float added = 0.0f;
#pragma unroll
            for (int n = 0; n < 2; ++n) {
#pragma unroll
                for (int i = 0; i < 2; ++i) {
                    float &weight = s[n][2 * r + i];
                    weight = fast_exp2(weight - base);
                    added += weight;
                }
            }
            sum[r] = sum[r] * correction[r] + added;
        }
        if (__any_sync(0xffffffffu, correction[0] != 1.0f || correction[1] != 1.0f)) rescale(correction);
#pragma unroll
        for (int i = 0; i < 4; ++i) weights[i] = Half<M>::pack(s[i / 2][i % 2 * 2], s[i / 2][i % 2 * 2 + 1]);
    }

    __device__ __forceinline__ void rescale(const float (&factor)[2]) {
#pragma unroll
        for (int tile = 0; tile < HD / 8; ++tile) {
#pragma unroll
            for (int i = 0; i < 4; ++i) o[tile][i] *= factor[i / 2];
        }
    }
};

// Leaves a warp's result for the others.
template <typename T, typename S, int HD>
__device__ __forceinline__ void store_sums(Softmax<HD> &softmax, float *sums, float2 *stats) {
    using D = Decode<T, S, HD>;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int row = g + r * 8;
        float sum = softmax.sum[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (c == 0) stats[row] = make_float2(softmax.maximum[r], sum);
        if constexpr (D::IS_FP8) {
            // The columns of a thread in four tiles (in two, of the last 16) are neighbours: see `weigh`.
#pragma unroll
            for (int start = 0; start < HD; start += 32) {
                const float(*o)[4] = &softmax.o[start / 8];
                if (start + 32 <= HD) {
#pragma unroll
                    for (int i = 0; i < 2; ++i) {
                        const int at = D::sum_place(row, start + c * 8 + i * 4), e = 2 * r + i;
                        *reinterpret_cast<float4 *>(sums + at) = make_float4(o[0][e], o[1][e], o[2][e], o[3][e]);
                    }
                } else {
                    const int at = D::sum_place(row, start + c * 4), e = 2 * r;
                    *reinterpret_cast<float4 *>(sums + at) = make_float4(o[0][e], o[1][e], o[0][e + 1], o[1][e + 1]);
                }
            }
        } else {
#pragma unroll
            for (int tile = 0; tile < D::N_TILES; ++tile) {
                const float(&o)[4] = softmax.o[tile];
                *reinterpret_cast<float2 *>(sums + D::sum_place(row, tile * 8 + c * 2)) =
                    make_float2(o[2 * r], o[2 * r + 1]);
            }
        }
    }
}

// Some elements of one head, of all warps: eight threads have a head, with every eighth four elements.
template <typename T, typename S, int HD>
struct Merged {
    static constexpr int FOURS = (HD / 4 + 7) / 8;
    int head;
    float maximum;
    float sum;
    float4 o[FOURS];

    static __device__ __forceinline__ int dim(int i) { return (i * 8 + threadIdx.x % 8) * 4; }
    static __device__ __forceinline__ bool has(int i) { return HD % 32 == 0 || dim(i) < HD; }

    // What there is without keys.
    __device__ __forceinline__ Merged() : head(threadIdx.x / 8), maximum(-CUDART_INF_F), sum(0.0f) {
#pragma unroll
        for (int i = 0; i < FOURS; ++i) o[i] = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
    }

    // Takes in the warps, in order; `sums` of the next warp lie `stride` floats further.
    __device__ __forceinline__ void add(const float *sums, int stride, const float2 *stats) {
        using D = Decode<T, S, HD>;
        float2 of[DECODE_WARPS];
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; ++w) {
            of[w] = stats[w * 16 + head];
            maximum = fmaxf(maximum, of[w].x);
        }
        const float base = maximum == -CUDART_INF_F ? 0.0f : maximum;
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; ++w) {
            of[w].x = fast_exp2(of[w].x - base);
            sum += of[w].y * of[w].x;
        }
#pragma unroll
        for (int i = 0; i < FOURS; ++i) {
            if (!has(i)) continue;
#pragma unroll
            for (int w = 0; w < DECODE_WARPS; ++w) {
                const float4 x = *reinterpret_cast<const float4 *>(sums + w * stride + D::sum_place(head, dim(i)));
                o[i].x += x.x * of[w].x, o[i].y += x.y * of[w].x, o[i].z += x.z * of[w].x, o[i].w += x.w * of[w].x;
            }
        }
    }

    __device__ __forceinline__ void store_result(T *out) const {
        const float factor = sum > 0.0f ? 1.0f / sum : 0.0f;
#pragma unroll
        for (int i = 0; i < FOURS; ++i) {
            if (!has(i)) continue;
            *reinterpret_cast<uint2 *>(out + head * HD + dim(i)) =
                make_uint2(Half<T>::pack(o[i].x * factor, o[i].y * factor), Half<T>::pack(o[i].z * factor, o[i].w * factor));
        }
    }

    __device__ __forceinline__ void store_part(float *parts, float2 *stats) const {
        if (threadIdx.x % 8 == 0) stats[head] = make_float2(maximum, sum);
#pragma unroll
        for (int i = 0; i < FOURS; ++i) {
            if (has(i)) *reinterpret_cast<float4 *>(parts + head * HD + dim(i)) = o[i];
        }
    }
};

// Four elements of one head, summed over parts.
struct Total {
    float maximum = -CUDART_INF_F;
    float sum = 0.0f;
    float4 o = make_float4(0.0f, 0.0f, 0.0f, 0.0f);

    template <int N>
    __device__ __forceinline__ void add(const float2 (&stats)[N], const float4 (&parts)[N]) {
        float next = maximum;
#pragma unroll
        for (int i = 0; i < N; ++i) next = fmaxf(next, stats[i].x);
        const float base = next == -CUDART_INF_F ? 0.0f : next;
        const float before = fast_exp2(maximum - base);
        maximum = next;
        sum *= before, o.x *= before, o.y *= before, o.z *= before, o.w *= before;
#pragma unroll
        for (int i = 0; i < N; ++i) {
            const float weight = fast_exp2(stats[i].x - base);
            sum += stats[i].y * weight;
            o.x += parts[i].x * weight, o.y += parts[i].y * weight;
            o.z += parts[i].z * weight, o.w += parts[i].w * weight;
        }
    }

    template <typename T>
    __device__ __forceinline__ void store(T *out) const {
        const float factor = sum > 0.0f ? 1.0f / sum : 0.0f;
        *reinterpret_cast<uint2 *>(out) =
            make_uint2(Half<T>::pack(o.x * factor, o.y * factor), Half<T>::pack(o.z * factor, o.w * factor));
    }
};

// The parts of a segment's row in device memory.
template <int HD>
struct Parts {
    float *sums;
    float2 *stats;
    int64_t first, stride;  // In heads: of the first part, of the next one.

    __device__ __forceinline__ Parts(const DecodeParams &p, const Segment &s)
        : sums(reinterpret_cast<float *>(p.parts)),
          stats(reinterpret_cast<float2 *>(p.part_stats)),
          first((int64_t(s.first_part) * gridDim.y + blockIdx.y) * 16),
          stride(int64_t(gridDim.y) * 16) {}

    // Merges four elements of a head over all parts, in order.
    template <typename T>
    __device__ __forceinline__ void merge(int num_parts, int head, int dim, T *out) const {
        Total total;
        for (int start = 0; start < num_parts; start += 8) {
            float2 part_stats[8];
            float4 parts[8];
#pragma unroll
            for (int i = 0; i < 8; ++i) {
                const bool is_there = start + i < num_parts;
                const int64_t at = first + (is_there ? start + i : start) * stride + head;
                part_stats[i] = __ldcg(&stats[at]);
                parts[i] = __ldcg(reinterpret_cast<const float4 *>(sums + at * HD + dim));
                if (!is_there) part_stats[i] = make_float2(-CUDART_INF_F, 0.0f);
            }
            total.add(part_stats, parts);
        }
        total.store(out + head * HD + dim);
    }
};

// Counts a part that all threads have written; tells all of them whether it was the last, whose counter is zero again.
__device__ __forceinline__ bool is_last_part(int *counter, int num_parts, int *flag) {
    __syncthreads();
    if (threadIdx.x == 0) {
        int before;
        asm volatile("atom.add.acq_rel.gpu.global.s32 %0, [%1], 1;" : "=r"(before) : "l"(counter) : "memory");
        *flag = before == num_parts - 1;
        if (*flag) *counter = 0;
    }
    __syncthreads();
    return *flag;
}

// Leaves a segment: as results, or as a part that the last block to end merges with the others.
template <typename T, typename S, int HD>
__device__ __forceinline__ void finish(const DecodeParams &p, const Segment &s, const Merged<T, S, HD> &merged, T *out,
                                       int num_heads, int *flag) {
    if (s.num_parts() == 1) {
        if (merged.head < num_heads) merged.store_result(out);
        return;
    }
    const Parts<HD> parts(p, s);
    const int64_t at = parts.first + s.part() * parts.stride;
    if (merged.head < num_heads) merged.store_part(parts.sums + at * HD, parts.stats + at);
    int *counter = reinterpret_cast<int *>(p.counters) + s.first_part * gridDim.y + blockIdx.y;
    if (!is_last_part(counter, s.num_parts(), flag)) return;
    for (int i = threadIdx.x; i < num_heads * (HD / 4); i += 32 * DECODE_WARPS) {
        parts.merge(s.num_parts(), i / (HD / 4), i % (HD / 4) * 4, out);
    }
}

#if __CUDA_ARCH__ >= 900
// ---- Clusters: few rows ---------------------------------------------------------------------------------------

__device__ __forceinline__ void arrive_in_cluster() { asm volatile("barrier.cluster.arrive.release.aligned;" ::: "memory"); }
__device__ __forceinline__ void wait_for_cluster() { asm volatile("barrier.cluster.wait.acquire.aligned;" ::: "memory"); }

// Where the block `rank` of the cluster has what this one has at `address`.
__device__ __forceinline__ uint32_t in_block(uint32_t address, int rank) {
    uint32_t mapped;
    asm("mapa.shared::cluster.u32 %0, %1, %2;" : "=r"(mapped) : "r"(address), "r"(rank));
    return mapped;
}
__device__ __forceinline__ float4 load_cluster4(uint32_t address) {
    float4 v;
    asm volatile("ld.shared::cluster.v4.f32 {%0,%1,%2,%3}, [%4];" : "=f"(v.x), "=f"(v.y), "=f"(v.z), "=f"(v.w) : "r"(address) : "memory");
    return v;
}
__device__ __forceinline__ float2 load_cluster2(uint32_t address) {
    float2 v;
    asm volatile("ld.shared::cluster.v2.f32 {%0,%1}, [%2];" : "=f"(v.x), "=f"(v.y) : "r"(address) : "memory");
    return v;
}

// As `finish`, where the blocks of a cluster share one part: each merges two heads of all. The parts of a row are those
// of its clusters; the last block of its rank merges them. `sums` and `stats` are in shared memory.
template <typename T, typename S, int HD>
__device__ __forceinline__ void finish_cluster(const DecodeParams &p, const Segment &s, const Merged<T, S, HD> &merged,
                                               T *out, int num_heads, float *sums, float2 *stats, int *flag) {
    using D = Decode<T, S, HD>;
    const int rank = blockIdx.x % CLUSTER_BLOCKS;
#pragma unroll
    for (int i = 0; i < merged.FOURS; ++i) {
        if (merged.has(i)) *reinterpret_cast<float4 *>(sums + D::sum_place(merged.head, merged.dim(i))) = merged.o[i];
    }
    if (threadIdx.x % 8 == 0) stats[merged.head] = make_float2(merged.maximum, merged.sum);
    arrive_in_cluster();
    wait_for_cluster();
    const int head = rank + threadIdx.x / (HD / 4) * 8, dim = threadIdx.x % (HD / 4) * 4;
    const bool has_head = threadIdx.x < HD / 2 && head < num_heads;
    Total total;
    if (has_head) {
        float2 block_stats[CLUSTER_BLOCKS];
        float4 blocks[CLUSTER_BLOCKS];
#pragma unroll
        for (int i = 0; i < CLUSTER_BLOCKS; ++i) {
            block_stats[i] = load_cluster2(in_block(shared_address(stats + head), i));
            blocks[i] = load_cluster4(in_block(shared_address(sums + D::sum_place(head, dim)), i));
        }
        total.add(block_stats, blocks);
    }
    arrive_in_cluster();
    if (s.num_parts() == 1) {
        if (has_head) total.store(out + head * HD + dim);
    } else {
        const Parts<HD> parts(p, s);
        if (has_head) {
            const int64_t at = parts.first + s.part() * parts.stride + head;
            if (dim == 0) parts.stats[at] = make_float2(total.maximum, total.sum);
            *reinterpret_cast<float4 *>(parts.sums + at * HD + dim) = total.o;
        }
        int *counter =
            reinterpret_cast<int *>(p.counters) + (s.first_part * gridDim.y + blockIdx.y) * CLUSTER_BLOCKS + rank;
        if (is_last_part(counter, s.num_parts(), flag) && has_head) parts.merge(s.num_parts(), head, dim, out);
    }
    wait_for_cluster();
}
#endif

// One block: the segments of its run.
template <typename T, typename S, int HD, bool IS_CLUSTER>
__device__ __forceinline__ void decode(const DecodeParams &p) {
    using D = Decode<T, S, HD>;
    extern __shared__ __align__(128) char shared[];
    float2 *stats = reinterpret_cast<float2 *>(shared + D::STATS_AT);
    int *flag = reinterpret_cast<int *>(shared + D::FLAG_AT);

    const int head_tiles = (p.group + 15) / 16;
    const int kv_head = blockIdx.y / head_tiles, first_head = blockIdx.y % head_tiles * 16;
    const int num_heads = min(16, p.group - first_head);
    const int q_column = (kv_head * p.group + first_head) * HD;

    DecodeWarp<T, S, HD> copies(p, shared_address(shared) + threadIdx.x / 32 * D::STAGES * D::STAGE_BYTES, kv_head);
    int segment = blockIdx.x, end_segment = segment + 1;
    if constexpr (IS_CLUSTER) {
        // A segment a block. The blocks of a cluster without work leave together.
        if (copies.segments[segment].parts == 0) return;
    } else {
        const int *run_starts = reinterpret_cast<const int *>(p.run_starts);
        segment = run_starts[blockIdx.x], end_segment = run_starts[blockIdx.x + 1];
    }
    copies.start(segment, end_segment);
    // The plan, the block tables and the keys of earlier steps were there before the kernel in front of this one.
    bool has_waited = false;
#pragma unroll
    for (int stage = 0; stage < D::STAGES; ++stage) {
        if (!has_waited && copies.is_new()) {
            wait_for_previous_kernel();
            has_waited = true;
        }
        copies.copy(stage);
    }
    if (!has_waited) wait_for_previous_kernel();
    let_next_kernel_start();

    Segment next;
    if (segment < copies.end_segment) next = copies.segments[segment];
    int stage = 0;
    for (; segment < copies.end_segment; ++segment) {
        const Segment s = next;
        if (segment + 1 < copies.end_segment) next = copies.segments[segment + 1];
        uint32_t q[D::K_STEPS][4];
        load_queries<T, S, HD>(q, reinterpret_cast<const T *>(p.q) + int64_t(s.token) * p.q_stride + q_column, num_heads);
        Softmax<HD> softmax;
        const int low = copies.lowest(s);
        // The stage that was read last is filled again only after the merge, which takes its place.
        int emptied = -1;
        for (int key = low & ~(UNIT_KEYS - 1); key < s.end_key; key += UNIT_KEYS) {
            if (emptied >= 0) copies.copy(emptied);
            wait_copies<D::STAGES - 1>();
            __syncwarp();
            const uint32_t keys = copies.stages + stage * D::STAGE_BYTES;
            float scores[2][4];
            uint32_t weights[4];
            score<T, S, HD>(scores, q, keys);
            softmax.template add<typename D::M>(weights, scores, p.scale_log2, key + copies.warp * WARP_KEYS, low,
                                                s.end_key);
            weigh<T, S, HD>(softmax.o, weights, keys + D::TILE_BYTES);
            __syncwarp();
            emptied = stage;
            stage = stage + 1 == D::STAGES ? 0 : stage + 1;
        }
        Merged<T, S, HD> merged;
        float *sums = reinterpret_cast<float *>(shared + (D::IS_FP8 ? D::SUMS_AT : max(emptied, 0) * D::STAGE_BYTES));
        if (emptied >= 0) {
            constexpr int STRIDE = (D::IS_FP8 ? D::SUM_BYTES : D::STAGES * D::STAGE_BYTES) / 4;
            store_sums<T, S, HD>(softmax, sums + copies.warp * STRIDE, stats + copies.warp * 16);
            __syncthreads();
            merged.add(sums, STRIDE, stats);
        }
        T *out = reinterpret_cast<T *>(p.out) + int64_t(s.token) * p.out_stride + q_column;
        if constexpr (IS_CLUSTER) {
#if __CUDA_ARCH__ >= 900
            __syncthreads();
            // The same place in every block of the cluster, whatever was read last.
            sums = reinterpret_cast<float *>(shared + (D::IS_FP8 ? D::SUMS_AT : 0));
            finish_cluster<T, S, HD>(p, s, merged, out, num_heads, sums, stats, flag);
#endif
        } else {
            finish<T, S, HD>(p, s, merged, out, num_heads, flag);
            __syncthreads();
            if (emptied >= 0) copies.copy(emptied);
        }
    }
}

}  // namespace attention

#define ATTENTION_DECODE(SUFFIX, T, S, HD)                                                                      \
    extern "C" __global__ void __launch_bounds__(128, attention::DECODE_BLOCKS<HD>)                             \
        attention_decode_##SUFFIX##_##HD(const __grid_constant__ attention::DecodeParams p) {                   \
        attention::decode<T, S, HD, false>(p);                                                                  \
    }                                                                                                           \
    ATTENTION_DECODE_CLUSTER(SUFFIX, T, S, HD)

// Clusters came with compute capability 9.0.
#if !defined(__CUDA_ARCH__) || __CUDA_ARCH__ >= 900
#define ATTENTION_DECODE_CLUSTER(SUFFIX, T, S, HD)                                                              \
    extern "C" __global__ void __cluster_dims__(attention::CLUSTER_BLOCKS, 1, 1)                                \
        __launch_bounds__(128, attention::DECODE_BLOCKS<HD>)                                                    \
        attention_decode_cluster_##SUFFIX##_##HD(const __grid_constant__ attention::DecodeParams p) {           \
        attention::decode<T, S, HD, true>(p);                                                                   \
    }
#else
#define ATTENTION_DECODE_CLUSTER(SUFFIX, T, S, HD)
#endif

#define ATTENTION_DECODE_HEADS(SUFFIX, T, S) \
    ATTENTION_DECODE(SUFFIX, T, S, 64)       \
    ATTENTION_DECODE(SUFFIX, T, S, 80)       \
    ATTENTION_DECODE(SUFFIX, T, S, 96)       \
    ATTENTION_DECODE(SUFFIX, T, S, 128)      \
    ATTENTION_DECODE(SUFFIX, T, S, 256)
