// Attention of rows that compute one token: split over the sequence, the query heads of a group together.
//
// A plan made on the host cuts all rows into as many equal runs of keys as blocks run at once (LeanAttention,
// Sanovar et al., 2024; FlashInfer, Ye et al., 2025); a run is a list of segments, one row each. A block has four
// warps. A unit of keys is 64; each warp loads its own 16 of them by asynchronous copies, several units ahead and
// past the end of a segment, and keeps a softmax of its own (Flash-Decoding, Dao et al., 2023), so that warps meet
// only at the end of a segment. The (up to) 16 query heads are the rows of the tensor core's product. The last block
// to finish a row that was cut merges its parts, in order.
//
// For few rows the blocks of a cluster share the keys of one row, a segment each, and merge through each other's shared
// memory: `attention_decode_cluster_*`.
//
// Elements: T of queries and results, S of the cache. A cache of T is read by ldmatrix as it is.
//
//   grid    (runs, kv heads * tiles of 16 query heads)     threads 128     shared: Decode::SHARED_BYTES
//   q, out  [num_tokens, num_heads * head_dim], rows apart by a stride
//   block   keys [num_kv_heads, block_size, head_dim], then values alike
#pragma once

#include "attention_decode_copy.cuh"
#include "attention_decode_merge.cuh"
#include "attention_decode_products.cuh"

namespace attention {

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
            wait_for_previous();
            has_waited = true;
        }
        copies.copy(stage);
    }
    if (!has_waited) wait_for_previous();
    let_next_start();

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
