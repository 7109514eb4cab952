// Block-quantized linear layers for few tokens: out[t, r] = sum_k x[t, k] w[r, k] + bias[r].
//
// As linear_few.cu: a warp owns 16 rows and the records s, s + S, ... of slice s of S, weights are the A side of m16n8k16, and a ring of
// STAGES records (linear_quant.cuh) is in flight, by cp.async through shared memory that is the warp's own. Quants go into the product as small integers, exact in the activation type;
// the sum of each run of columns with one scale is then scaled in f32. Where the format has minimums, the sum of the
// run's activations comes out of the tensor cores too, as a product with ones.
//
// The order of the sums depends on the weight's shape and the number of slices alone.
//
// Grid [ceil(rows / (16 row_groups))], block 32 x (1..16 warps), dynamic shared memory warps x STAGES records.
// Rows of x are filled up to whole records with zeros. x rows start at multiples of 16 bytes; num_tokens <= 8 NT.
#include "linear_quant.cuh"

struct LinearQuantFewParams {
    uint64_t weight;  // [ceil(rows / 16), ceil(columns / 64)] records
    uint64_t x;       // [num_tokens, x_stride] T
    linear::Output out;
    uint32_t columns;
    uint32_t x_stride;
    uint32_t row_groups;
    uint32_t pad;
};

namespace linear {

// What a lane feeds into the products of 32 columns for the tokens of a tile.
template <typename F>
static __device__ __forceinline__ uint4 load_tokens(const char* x) {
    if (F::GROUP == 32) return load_shared_by_many(x);
    uint4 v;
    asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.x), "=r"(v.y) : "l"(x) : "memory");
    asm volatile("ld.global.v2.u32 {%0,%1}, [%2];" : "=r"(v.z), "=r"(v.w) : "l"(x + 32) : "memory");
    return v;
}

template <typename T, typename F, int NT>
static __device__ __forceinline__ void multiply(float (&sums)[1][NT][4], const Record<F>& record, int c,
                                                const uint4 (&x)[NT]) {
    uint32_t lo[4], hi[4];
#pragma unroll
    for (int i = 0; i < 4; i++) {
        lo[i] = expand<F>(T{}, record, c, 0, i);
        hi[i] = expand<F>(T{}, record, c, 1, i);
    }
#pragma unroll
    for (int n = 0; n < NT; n++) {
        float (&sum)[4] = sums[0][n];
        float first[4] = {}, second[4] = {};
        T::mma(first, lo[0], hi[0], lo[1], hi[1], x[n].x, x[n].y);
        if (F::GROUP == 16) {
            T::mma(second, lo[2], hi[2], lo[3], hi[3], x[n].z, x[n].w);
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum[i] = fmaf(record.scale(4 * c + i / 2), first[i], sum[i]);
                sum[i] = fmaf(record.scale(4 * c + 2 + i / 2), second[i], sum[i]);
            }
        } else {
            T::mma(first, lo[2], hi[2], lo[3], hi[3], x[n].z, x[n].w);
            if (F::HAS_MIN) {
                T::mma(second, T::ONES, T::ONES, T::ONES, T::ONES, x[n].x, x[n].y);
                T::mma(second, T::ONES, T::ONES, T::ONES, T::ONES, x[n].z, x[n].w);
            }
#pragma unroll
            for (int i = 0; i < 4; i++) {
                sum[i] = fmaf(record.scale(2 * c + i / 2), first[i], sum[i]);
                if (F::HAS_MIN) sum[i] = fmaf(record.minimum(2 * c + i / 2), second[i], sum[i]);
            }
        }
    }
}

template <typename T, typename F, int NT, int STAGES>
static __device__ __forceinline__ void quant_few(const LinearQuantFewParams& p) {
    constexpr uint32_t WARP_BYTES = STAGES * F::RECORD_BYTES;
    constexpr int AHEAD = NT == 1 ? 2 : 1;
    static_assert(8 * NT * 20 * 4 <= WARP_BYTES, "the sums fit the ring");
    extern __shared__ __align__(128) char rings[];
    let_next_start();
    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, num_slices = blockDim.x / 32 / p.row_groups;
    const uint32_t group = warp % p.row_groups, slice = warp / p.row_groups, g = lane / 4, t = lane % 4;
    const uint32_t first_row = blockIdx.x * 16 * p.row_groups;
    const uint32_t per_tile = (p.columns + 63) / 64;
    const uint32_t records = slice < per_tile ? (per_tile - slice + num_slices - 1) / num_slices : 0;
    const uint32_t tile = min(first_row / 16 + group, (p.out.rows - 1) / 16);

    const char* w = (const char*)p.weight + ((uint64_t)tile * per_tile + slice) * F::RECORD_BYTES + lane * 16;
    char* ring = rings + warp * WARP_BYTES;
    const uint32_t ring_address = __cvta_generic_to_shared(ring);
    auto fetch = [&](uint32_t record) {
        if (record < records) {
            const uint32_t to = ring_address + record % STAGES * F::RECORD_BYTES + lane * 16;
#pragma unroll
            for (int i = 0; i < F::RECORD_BYTES; i += 512)
                if (i + 512 <= F::RECORD_BYTES || i + lane * 16 < F::RECORD_BYTES) copy_async(to + i, w + i);
            w += num_slices * F::RECORD_BYTES;
        }
        commit_copies();
    };
#pragma unroll
    for (int s = 0; s < STAGES; s++) fetch(s);

    float sums[1][NT][4] = {};
    wait_for_previous();
    if (records > 0) {
        // Tokens come from the second cache, AHEAD records before they are used.
        const char* x[NT];
        uint4 b[AHEAD][2][NT];
        const uint32_t hop = num_slices * 128;
        auto load_chunk = [&](uint4 (&to)[NT], int record, int c) {
#pragma unroll
            for (int n = 0; n < NT; n++) to[n] = load_tokens<F>(x[n] + record * hop + c * 64);
        };
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const uint32_t token = min(8u * n + g, p.out.num_tokens - 1);
            x[n] = (const char*)p.x + ((uint64_t)token * p.x_stride + slice * 64 + column_of<F>(t, 0)) * 2;
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (j < records) load_chunk(b[j][0], j, 0), load_chunk(b[j][1], j, 1);
        for (uint32_t record = 0; record < records; record += AHEAD) {
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                if (record + j >= records) break;
                wait_for_copies<STAGES - 1>();
                __syncwarp();
                Record<F> held;
                held.load_shared(ring + (record + j) % STAGES * F::RECORD_BYTES, lane);
#pragma unroll
                for (int c = 0; c < 2; c++) {
                    multiply<T, F, NT>(sums, held, c, b[j][c]);
                    if (record + j + AHEAD < records) load_chunk(b[j][c], j + AHEAD, c);
                }
                __syncwarp();
                fetch(record + j + STAGES);
            }
#pragma unroll
            for (int n = 0; n < NT; n++) x[n] += AHEAD * hop;
        }
        __syncwarp();
    }
    store_sums<T, NT, 2>(sums, p.out, first_row, p.row_groups, num_slices, (float*)rings, WARP_BYTES / 4);
}

}  // namespace linear

#define QUANT_FEW(NAME, T, F, NT, STAGES)                                                                          \
    extern "C" __global__ void __launch_bounds__(512, 1) NAME(const __grid_constant__ LinearQuantFewParams p) {       \
        linear::quant_few<linear::T, linear::F, NT, STAGES>(p);                                                    \
    }

#define QUANT_FEW_TOKENS(FORMAT, SUFFIX, T, F, STAGES)                \
    QUANT_FEW(linear_##FORMAT##_few_t8_##SUFFIX, T, F, 1, STAGES)     \
    QUANT_FEW(linear_##FORMAT##_few_t16_##SUFFIX, T, F, 2, STAGES)    \
    QUANT_FEW(linear_##FORMAT##_few_t32_##SUFFIX, T, F, 4, STAGES)

// The stages are those of kernels-cuda/src/linear/format.rs.
#define QUANT_FEW_FORMATS(SUFFIX, T)            \
    QUANT_FEW_TOKENS(q4, SUFFIX, T, Q4, 8)      \
    QUANT_FEW_TOKENS(q4min, SUFFIX, T, Q4Min, 8)\
    QUANT_FEW_TOKENS(q4k, SUFFIX, T, Q4K, 8)    \
    QUANT_FEW_TOKENS(q5, SUFFIX, T, Q5, 6)      \
    QUANT_FEW_TOKENS(q5min, SUFFIX, T, Q5Min, 6)\
    QUANT_FEW_TOKENS(q5k, SUFFIX, T, Q5K, 6)    \
    QUANT_FEW_TOKENS(q6k, SUFFIX, T, Q6K, 6)    \
    QUANT_FEW_TOKENS(q8, SUFFIX, T, Q8, 4)

QUANT_FEW_FORMATS(bf16, Bf16)
QUANT_FEW_FORMATS(f16, F16)
