// Decode attention: the results of warps, of the blocks of a cluster and of the parts of a row become one.
#pragma once

#include "attention_decode_products.cuh"

namespace attention {

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
            // The columns of a thread in two tiles are neighbours: see `weigh`.
#pragma unroll
            for (int tile = 0; tile < D::N_TILES; tile += 2) {
                const float(*o)[4] = &softmax.o[tile];
                const int at = D::sum_place(row, tile * 8 + c * 4), e = 2 * r;
                *reinterpret_cast<float4 *>(sums + at) = make_float4(o[0][e], o[1][e], o[0][e + 1], o[1][e + 1]);
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

    __device__ __forceinline__ void store_result(T *out, float value_scale) const {
        const float factor = sum > 0.0f ? value_scale / sum : 0.0f;
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
    __device__ __forceinline__ void store(T *out, float value_scale) const {
        const float factor = sum > 0.0f ? value_scale / sum : 0.0f;
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
    float value_scale;

    __device__ __forceinline__ Parts(const DecodeParams &p, const Segment &s)
        : sums(reinterpret_cast<float *>(p.parts)),
          stats(reinterpret_cast<float2 *>(p.part_stats)),
          first((int64_t(s.first_part) * gridDim.y + blockIdx.y) * 16),
          stride(int64_t(gridDim.y) * 16),
          value_scale(p.value_scale) {}

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
        total.store(out + head * HD + dim, value_scale);
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
        if (merged.head < num_heads) merged.store_result(out, p.value_scale);
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
        if (has_head) total.store(out + head * HD + dim, p.value_scale);
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

}  // namespace attention
