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

// A range of keys of one query token. Written by the plan.
struct __align__(16) Segment {
    int row;         // Of the block table.
    int token;       // Row of q and out.
    int first_key;   // A multiple of UNIT_KEYS.
    int end_key;     // At most position + 1; 0 for a padded row.
    int position;    // Of the query.
    int first_part;  // Number of the row's first part among all parts; also the number of its counter.
    int part;        // Number of this part in the row.
    int num_parts;   // 1: the row was not cut.
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
    static constexpr int PITCH = (IS_FP8 && HD == 80) ? 80 : HD * int(sizeof(S)) + 16;  // Bytes; spreads the banks.
    static constexpr int TILE_BYTES = WARP_KEYS * PITCH;
    static constexpr int STAGE_BYTES = 2 * TILE_BYTES;
    static constexpr int MERGE_PITCH = HD + 8;  // Floats.
    static constexpr int MERGE_BYTES = 2 * 16 * MERGE_PITCH * 4;
    static constexpr int STATS_BYTES = DECODE_WARPS * 16 * 8;
    static constexpr int DEEP = HD * int(sizeof(S)) >= 256 ? 2 : 4;
    static constexpr int STAGES =
        DECODE_WARPS * DEEP * STAGE_BYTES + MERGE_BYTES + STATS_BYTES + 16 <= SHARED_LIMIT ? DEEP : 1;
    static constexpr int STAGES_BYTES = DECODE_WARPS * STAGES * STAGE_BYTES;
    static constexpr int SHARED_BYTES = STAGES_BYTES + MERGE_BYTES + STATS_BYTES + 16;
    static constexpr int K_STEPS = HD / 16;
    static constexpr int N_TILES = HD / 8;
    static constexpr int PIECES = HD * int(sizeof(S)) / 16;  // Of 16 bytes a key.

    // The element of a head that stands in this column of this tile of the result.
    static __device__ __forceinline__ int dim_of(int tile, int column) {
        if (!IS_FP8) return tile * 8 + column;
        const int start = tile / 4 * 32;
        return start + 32 <= HD ? start + column * 4 + tile % 4 : start + column * 2 + tile % 4;
    }
};

// Where a warp's copies have got to.
struct Cursor {
    int segment;
    int key;  // Of the unit.
    int low;  // First visible key.
    int end;
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

    // Moves the cursor to the first unit of its segment; an empty one is skipped.
    __device__ __forceinline__ void enter_segment() {
        while (cursor.segment < end_segment) {
            const Segment s = segments[cursor.segment];
            cursor.low = lowest(s);
            cursor.key = cursor.low & ~(UNIT_KEYS - 1);
            cursor.end = s.end_key;
            cursor.table = reinterpret_cast<const int *>(p.block_tables) + int64_t(s.row) * p.table_stride;
            if (cursor.key < cursor.end) break;
            ++cursor.segment;
        }
        look_up();
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
                const uint32_t at = to + row * D::PITCH + column * 16;
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
        const uint32_t at = keys + (lane / 4) * D::PITCH + (lane % 4) * 4;
#pragma unroll
        for (int k = 0; k < D::K_STEPS; ++k) {
#pragma unroll
            for (int n = 0; n < 2; ++n) {
                const uint32_t four = load_shared32(at + n * 8 * D::PITCH + k * 16);
                Half<M>::mma(s[n], q[k], fp8x2_to_half2<S>(four), fp8x2_to_half2<S>(four >> 16));
            }
        }
    } else {
        const uint32_t at = keys + ((lane / 16) * 8 + lane % 8) * D::PITCH + (lane / 8 % 2) * 16;
#pragma unroll
        for (int k = 0; k < D::K_STEPS; ++k) {
            uint32_t b[4];
            load_matrices(b, at + k * 32);
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
        const uint32_t at = values + (lane % 4) * 2 * D::PITCH;
#pragma unroll
        for (int start = 0; start < HD; start += 32) {
            uint32_t rows[4];
            const bool is_whole = start + 32 <= HD;
#pragma unroll
            for (int i = 0; i < 4; ++i) {
                const uint32_t row = at + ((i / 2) * 8 + i % 2) * D::PITCH + start;
                rows[i] = is_whole ? load_shared32(row + lane / 4 * 4) : load_shared16(row + lane / 4 * 2);
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
        const uint32_t at = values + ((lane / 8 % 2) * 8 + lane % 8) * D::PITCH + (lane / 16) * 16;
#pragma unroll
        for (int tile = 0; tile < D::N_TILES; tile += 2) {
            uint32_t b[4];
            load_matrices_transposed(b, at + tile * 16);
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

// Merges the four warps into the first one, in a fixed order.
template <typename T, typename S, int HD>
__device__ __forceinline__ void merge_warps(Softmax<HD> &softmax, float *merge, float2 *stats) {
    using D = Decode<T, S, HD>;
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float &sum = softmax.sum[r];
        sum += __shfl_xor_sync(0xffffffffu, sum, 1);
        sum += __shfl_xor_sync(0xffffffffu, sum, 2);
        if (c == 0) stats[warp * 16 + g + r * 8] = make_float2(softmax.maximum[r], sum);
    }
    __syncthreads();
    float factor[2];
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        float2 of[DECODE_WARPS];
        float maximum = -CUDART_INF_F, sum = 0.0f;
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; ++w) {
            of[w] = stats[w * 16 + g + r * 8];
            maximum = fmaxf(maximum, of[w].x);
        }
        const float base = maximum == -CUDART_INF_F ? 0.0f : maximum;
#pragma unroll
        for (int w = 0; w < DECODE_WARPS; ++w) sum += of[w].y * fast_exp2(of[w].x - base);
        factor[r] = fast_exp2(softmax.maximum[r] - base);
        softmax.maximum[r] = maximum;
        softmax.sum[r] = sum;
    }
    softmax.rescale(factor);
#pragma unroll
    for (int senders = DECODE_WARPS / 2; senders > 0; senders /= 2) {
        const int slot = warp % senders;
        float *at = merge + (slot * 16 + g) * D::MERGE_PITCH + c * 2;
        if (warp >= senders && warp < 2 * senders) {
#pragma unroll
            for (int tile = 0; tile < D::N_TILES; ++tile) {
                const float(&o)[4] = softmax.o[tile];
                *reinterpret_cast<float2 *>(at + tile * 8) = make_float2(o[0], o[1]);
                *reinterpret_cast<float2 *>(at + tile * 8 + 8 * D::MERGE_PITCH) = make_float2(o[2], o[3]);
            }
        }
        __syncthreads();
        if (warp < senders) {
#pragma unroll
            for (int tile = 0; tile < D::N_TILES; ++tile) {
                float(&o)[4] = softmax.o[tile];
                const float2 upper = *reinterpret_cast<const float2 *>(at + tile * 8);
                const float2 lower = *reinterpret_cast<const float2 *>(at + tile * 8 + 8 * D::MERGE_PITCH);
                o[0] += upper.x, o[1] += upper.y, o[2] += lower.x, o[3] += lower.y;
            }
        }
    }
}

// The first warp's result as activations.
template <typename T, typename S, int HD>
__device__ __forceinline__ void store_result(const Softmax<HD> &softmax, T *out, int num_heads) {
    using D = Decode<T, S, HD>;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int head = g + r * 8;
        if (head >= num_heads) continue;
        const float factor = softmax.sum[r] > 0.0f ? 1.0f / softmax.sum[r] : 0.0f;
#pragma unroll
        for (int tile = 0; tile < D::N_TILES; ++tile) {
            const float first = softmax.o[tile][2 * r] * factor, second = softmax.o[tile][2 * r + 1] * factor;
            T *at = out + head * HD;
            if constexpr (D::IS_FP8) {
                at[D::dim_of(tile, c * 2)] = T(first);
                at[D::dim_of(tile, c * 2 + 1)] = T(second);
            } else {
                *reinterpret_cast<uint32_t *>(at + tile * 8 + c * 2) = Half<T>::pack(first, second);
            }
        }
    }
}

// The first warp's result as a part of a row.
template <typename T, typename S, int HD>
__device__ __forceinline__ void store_part(const Softmax<HD> &softmax, float *part, float2 *stats, int num_heads) {
    using D = Decode<T, S, HD>;
    const int lane = threadIdx.x % 32, g = lane / 4, c = lane % 4;
#pragma unroll
    for (int r = 0; r < 2; ++r) {
        const int head = g + r * 8;
        if (head >= num_heads) continue;
        if (c == 0) stats[head] = make_float2(softmax.maximum[r], softmax.sum[r]);
#pragma unroll
        for (int tile = 0; tile < D::N_TILES; ++tile) {
            float *at = part + head * HD;
            if constexpr (D::IS_FP8) {
                at[D::dim_of(tile, c * 2)] = softmax.o[tile][2 * r];
                at[D::dim_of(tile, c * 2 + 1)] = softmax.o[tile][2 * r + 1];
            } else {
                *reinterpret_cast<float2 *>(at + tile * 8 + c * 2) =
                    make_float2(softmax.o[tile][2 * r], softmax.o[tile][2 * r + 1]);
            }
        }
    }
}

// Merges the parts of a row, in order: a head a warp, four elements a lane.
template <typename T, int HD>
__device__ __forceinline__ void merge_parts(const DecodeParams &p, const Segment &s, T *out, int num_heads) {
    const int warp = threadIdx.x / 32, lane = threadIdx.x % 32;
    const float *parts = reinterpret_cast<const float *>(p.parts);
    const float2 *stats = reinterpret_cast<const float2 *>(p.part_stats);
    const auto place = [&](int part) {
        return (int64_t(s.first_part + part) * gridDim.y + blockIdx.y) * 16;
    };
    for (int head = warp; head < num_heads; head += DECODE_WARPS) {
        float maximum = -CUDART_INF_F;
        for (int part = lane; part < s.num_parts; part += 32) {
            maximum = fmaxf(maximum, __ldcg(&stats[place(part) + head]).x);
        }
#pragma unroll
        for (int lanes = 16; lanes > 0; lanes /= 2) {
            maximum = fmaxf(maximum, __shfl_xor_sync(0xffffffffu, maximum, lanes));
        }
        const float base = maximum == -CUDART_INF_F ? 0.0f : maximum;
#pragma unroll
        for (int start = 0; start < HD; start += 128) {
            const int dim = start + lane * 4;
            if (dim >= HD) continue;
            float sum = 0.0f;
            float4 total = make_float4(0.0f, 0.0f, 0.0f, 0.0f);
#pragma unroll 8
            for (int part = 0; part < s.num_parts; ++part) {
                const int64_t at = place(part) + head;
                const float2 of = __ldcg(&stats[at]);
                const float4 o = __ldcg(reinterpret_cast<const float4 *>(parts + at * HD + dim));
                const float weight = fast_exp2(of.x - base);
                sum += of.y * weight;
                total.x += o.x * weight, total.y += o.y * weight;
                total.z += o.z * weight, total.w += o.w * weight;
            }
            const float factor = sum > 0.0f ? 1.0f / sum : 0.0f;
            *reinterpret_cast<uint2 *>(out + head * HD + dim) =
                make_uint2(Half<T>::pack(total.x * factor, total.y * factor),
                           Half<T>::pack(total.z * factor, total.w * factor));
        }
    }
}

template <typename T, typename S, int HD>
__device__ __forceinline__ void decode(const DecodeParams &p) {
    using D = Decode<T, S, HD>;
    extern __shared__ __align__(128) char shared[];
    float *merge = reinterpret_cast<float *>(shared + D::STAGES_BYTES);
    float2 *warp_stats = reinterpret_cast<float2 *>(shared + D::STAGES_BYTES + D::MERGE_BYTES);
    int *is_last = reinterpret_cast<int *>(shared + D::STAGES_BYTES + D::MERGE_BYTES + D::STATS_BYTES);

    const int head_tiles = (p.group + 15) / 16;
    const int kv_head = blockIdx.y / head_tiles, first_head = blockIdx.y % head_tiles * 16;
    const int num_heads = min(16, p.group - first_head);
    const int q_column = (kv_head * p.group + first_head) * HD;
    const int *run_starts = reinterpret_cast<const int *>(p.run_starts);

    DecodeWarp<T, S, HD> copies(p, shared_address(shared) + threadIdx.x / 32 * D::STAGES * D::STAGE_BYTES, kv_head);
    int segment = run_starts[blockIdx.x];
    copies.end_segment = run_starts[blockIdx.x + 1];
    copies.cursor.segment = segment;
    wait_for_previous_kernel();
    copies.enter_segment();
#pragma unroll
    for (int stage = 0; stage < D::STAGES; ++stage) copies.copy(stage);
    int stage = 0;

    for (; segment < copies.end_segment; ++segment) {
        const Segment s = copies.segments[segment];
        uint32_t q[D::K_STEPS][4];
        load_queries<T, S, HD>(q, reinterpret_cast<const T *>(p.q) + int64_t(s.token) * p.q_stride + q_column, num_heads);
        Softmax<HD> softmax;
        const int low = copies.lowest(s);
        for (int key = low & ~(UNIT_KEYS - 1); key < s.end_key; key += UNIT_KEYS) {
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
            copies.copy(stage);
            stage = stage + 1 == D::STAGES ? 0 : stage + 1;
        }
        merge_warps<T, S, HD>(softmax, merge, warp_stats);
        T *out = reinterpret_cast<T *>(p.out) + int64_t(s.token) * p.out_stride + q_column;
        if (s.num_parts == 1) {
            if (copies.warp == 0) store_result<T, S, HD>(softmax, out, num_heads);
            continue;
        }
        if (copies.warp == 0) {
            const int64_t at = (int64_t(s.first_part + s.part) * gridDim.y + blockIdx.y) * 16;
            store_part<T, S, HD>(softmax, reinterpret_cast<float *>(p.parts) + at * HD,
                                 reinterpret_cast<float2 *>(p.part_stats) + at, num_heads);
            __threadfence();
            __syncwarp();
            if (copies.lane == 0) {
                int *counter = reinterpret_cast<int *>(p.counters) + s.first_part * gridDim.y + blockIdx.y;
                const bool is_done = atomicAdd(counter, 1) == s.num_parts - 1;
                if (is_done) *counter = 0;
                __threadfence();
                *is_last = is_done;
            }
        }
        __syncthreads();
        if (*is_last) merge_parts<T, HD>(p, s, out, num_heads);
        __syncthreads();
    }
}

}  // namespace attention

#define ATTENTION_DECODE(NAME, T, S, HD)                                                                        \
    extern "C" __global__ void __launch_bounds__(128, (HD) * sizeof(S) > 256 ? 1 : 2)                           \
        NAME(const __grid_constant__ attention::DecodeParams p) {                                               \
        attention::decode<T, S, HD>(p);                                                                         \
    }

#define ATTENTION_DECODE_HEADS(SUFFIX, T, S)                    \
    ATTENTION_DECODE(attention_decode_##SUFFIX##_64, T, S, 64)   \
    ATTENTION_DECODE(attention_decode_##SUFFIX##_80, T, S, 80)   \
    ATTENTION_DECODE(attention_decode_##SUFFIX##_96, T, S, 96)   \
    ATTENTION_DECODE(attention_decode_##SUFFIX##_128, T, S, 128) \
    ATTENTION_DECODE(attention_decode_##SUFFIX##_256, T, S, 256)
