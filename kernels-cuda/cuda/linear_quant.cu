// Block-quantized weights: GGUF blocks into records (linear_quant.cuh), records into rows of the activation type.
//
// linear_repack_FORMAT: grid [ceil(row tiles x records / 8)], block 256, a warp a record.
// linear_dequantize_FORMAT_T: the same; out [rows, columns], columns % 32 == 0.
// linear_embed_FORMAT: grid [num_tokens], block 256; a token's row, to the residual stream. The ids lie within the rows.
#include "linear_quant.cuh"

struct LinearRepackParams {
    uint64_t blocks;   // [rows, columns / block_len] GGUF blocks
    uint64_t records;  // [ceil(rows / 16), ceil(columns / 64)] records
    uint32_t rows;
    uint32_t columns;
};

struct LinearDequantizeParams {
    uint64_t records;
    uint64_t out;  // [rows, columns] T
    uint32_t rows;
    uint32_t columns;
};

struct LinearQuantEmbedParams {
    uint64_t records;
    uint64_t ids;  // [num_tokens] i32
    uint64_t out;  // [num_tokens, out_stride] f32
    uint32_t first_row;  // ids below it, or from first_row + rows on, are another segment's
    uint32_t rows;
    uint32_t columns;
    uint32_t out_stride;
};

namespace linear {

// GGUF's formats: how to read element i of a block, and the scales of a row's 32 columns from element i on. `put_scales`
// sets those of row half `half` and columns `c` of a record.
static __device__ __forceinline__ uint32_t half_at(const uint8_t* p) { return p[0] | p[1] << 8; }

template <int BITS, bool MIN>
struct Simple {  // Q4_0, Q4_1, Q5_0, Q5_1
    static constexpr int LEN = 32, HEADER = MIN ? 4 : 2, BYTES = HEADER + (BITS == 5 ? 4 : 0) + 16;
    static __device__ int quant(const uint8_t* b, int i) {
        const uint8_t* q = b + BYTES - 16;
        const int low = q[i % 16] >> (i / 16 * 4) & 15;
        return BITS == 5 ? low | (b[HEADER + i / 8] >> (i % 8) & 1) << 4 : low;
    }
    static __device__ void put_scales(const uint8_t* b, int, int c, int half, uint32_t* scales) {
        if (MIN)
            scales[2 * c + half] = half_at(b) | half_at(b + 2) << 16;
        else
            scales[c] |= half_at(b) << (16 * half);
    }
};
struct Q8_0 {
    static constexpr int LEN = 32, BYTES = 34;
    static __device__ int quant(const uint8_t* b, int i) { return b[2 + i]; }
    static __device__ void put_scales(const uint8_t* b, int, int c, int half, uint32_t* scales) {
        scales[c] |= half_at(b) << (16 * half);
    }
};
template <int BITS>
struct K {  // Q4_K, Q5_K
    static constexpr int LEN = 256, QUANTS = BITS == 5 ? 48 : 16, BYTES = QUANTS + 128;
    static __device__ int quant(const uint8_t* b, int i) {
        const int sub = i / 32, low = b[QUANTS + sub / 2 * 32 + i % 32] >> (sub % 2 * 4) & 15;
        return BITS == 5 ? low | (b[16 + i % 32] >> sub & 1) << 4 : low;
    }
    static __device__ void put_scales(const uint8_t* b, int i, int c, int half, uint32_t* scales) {
        const uint8_t* p = b + 4;
        const int sub = i / 32;
        const uint32_t scale = sub < 4 ? p[sub] & 63 : (p[4 + sub] & 15) | (p[sub - 4] >> 6) << 4;
        const uint32_t minimum = sub < 4 ? p[4 + sub] & 63 : p[4 + sub] >> 4 | (p[sub] >> 6) << 4;
        scales[2 * half] = half_at(b) | half_at(b + 2) << 16;
        scales[2 * half + 1] |= (scale | minimum << 8) << (16 * c);
    }
};
struct Q6_K {
    static constexpr int LEN = 256, BYTES = 210;
    static __device__ int quant(const uint8_t* b, int i) {
        const int half = i / 128, within = i % 128;
        const int low = b[half * 64 + within % 64] >> (within / 64 * 4) & 15;
        return low | (b[128 + half * 32 + within % 32] >> (within / 32 * 2) & 3) << 4;
    }
    static __device__ void put_scales(const uint8_t* b, int i, int c, int half, uint32_t* scales) {
        scales[2 * half] |= (uint32_t)(b[192 + i / 16] | b[193 + i / 16] << 8) << (16 * c);
        scales[2 * half + 1] = half_at(b + 208);
    }
};

// Rows and columns beyond the weight get quants and scales of zero.
template <typename G, typename F>
static __device__ void repack(const LinearRepackParams& p) {
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, per_tile = (p.columns + 63) / 64;
    const uint64_t record = (uint64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (record >= (uint64_t)((p.rows + 15) / 16) * per_tile) return;
    const uint32_t tile = record / per_tile, first_column = record % per_tile * 64;
    const uint32_t blocks_per_row = p.columns / G::LEN;
    uint32_t quants[F::QUANT_BYTES / 128] = {}, high[2] = {}, scales[F::SCALE_BYTES / 4] = {};
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t row = 16 * tile + 8 * half + g, run = first_column + 32 * c;
            if (row >= p.rows || run >= p.columns) continue;
            const uint8_t* block =
                (const uint8_t*)p.blocks + ((uint64_t)row * blocks_per_row + run / G::LEN) * G::BYTES;
#pragma unroll
            for (int i = 0; i < 8; i++) {
                const uint32_t q = G::quant(block, run % G::LEN + column_of<F>(t, i));
                const int pair = i / 2, up = 16 * (i % 2), w = 2 * c + half;
                if (F::BITS == 8)
                    quants[4 * c + 2 * half + pair / 2] |= q << (8 * (pair % 2) + up);
                else
                    quants[w] |= (q & 15) << (4 * pair + up);
                if (F::BITS == 5) high[0] |= (q >> 4) << (4 * w + pair + up);
                if (F::BITS == 6) high[w / 2] |= (q >> 4) << (8 * (w % 2) + 2 * pair + up);
            }
            G::put_scales(block, run % G::LEN, c, half, scales);
        }
    char* out = (char*)p.records + record * F::RECORD_BYTES;
#pragma unroll
    for (int i = 0; i < F::QUANT_BYTES / 512; i++)
        ((uint4*)(out + 512 * i))[lane] =
            make_uint4(quants[4 * i], quants[4 * i + 1], quants[4 * i + 2], quants[4 * i + 3]);
    out += F::QUANT_BYTES;
    if (F::BITS == 5) ((uint32_t*)out)[lane] = high[0];
    if (F::BITS == 6) ((uint2*)out)[lane] = make_uint2(high[0], high[1]);
    out += F::HIGH_BYTES;
    if (t == 0)
#pragma unroll
        for (int i = 0; i < F::SCALE_BYTES / 4; i++) ((uint32_t*)out)[g * F::SCALE_BYTES / 4 + i] = scales[i];
}

// A lane's eight values of 32 columns, to where they lie in a row.
template <typename T, typename F>
static __device__ __forceinline__ void put_values(const float (&values)[8], typename T::Element* out, int t) {
    typename T::Element rounded[8];
#pragma unroll
    for (int i = 0; i < 8; i++) rounded[i] = T::round(values[i]);
    const uint2* halves = (const uint2*)rounded;
    if (F::GROUP == 32) {
        *(uint4*)(out + column_of<F>(t, 0)) = make_uint4(halves[0].x, halves[0].y, halves[1].x, halves[1].y);
    } else {
        *(uint2*)(out + column_of<F>(t, 0)) = halves[0];
        *(uint2*)(out + column_of<F>(t, 4)) = halves[1];
    }
}

template <typename F>
static __device__ __forceinline__ void put_f32(const float (&values)[8], float* out, int t) {
    *(float4*)(out + column_of<F>(t, 0)) = make_float4(values[0], values[1], values[2], values[3]);
    *(float4*)(out + column_of<F>(t, 4)) = make_float4(values[4], values[5], values[6], values[7]);
}

template <typename T, typename F>
static __device__ __forceinline__ void dequantize(const LinearDequantizeParams& p) {
    let_next_start();
    const uint32_t lane = threadIdx.x % 32, g = lane / 4, t = lane % 4, per_tile = (p.columns + 63) / 64;
    const uint64_t at = (uint64_t)blockIdx.x * 8 + threadIdx.x / 32;
    if (at >= (uint64_t)((p.rows + 15) / 16) * per_tile) return;
    const uint32_t tile = at / per_tile, first_column = at % per_tile * 64;
    Record<F> record;
    record.load((const char*)p.records + at * F::RECORD_BYTES, lane);
    wait_for_previous();  // the rows written now may be what the kernel before reads
#pragma unroll
    for (int c = 0; c < 2; c++)
#pragma unroll
        for (int half = 0; half < 2; half++) {
            const uint32_t row = 16 * tile + 8 * half + g, run = first_column + 32 * c;
            if (row >= p.rows || run >= p.columns) continue;
            float values[8];
            values_of<F>(record, c, half, values);
            put_values<T, F>(values, (typename T::Element*)p.out + (uint64_t)row * p.columns + run, t);
        }
}

template <typename F>
static __device__ __forceinline__ void embed(const LinearQuantEmbedParams& p) {
    let_next_start();
    wait_for_previous();
    const uint32_t row = (uint32_t)((const int*)p.ids)[blockIdx.x] - p.first_row;
    if (row >= p.rows) return;
    const uint32_t per_tile = (p.columns + 63) / 64;
    const char* records = (const char*)p.records + (uint64_t)(row / 16) * per_tile * F::RECORD_BYTES;
    float* out = (float*)p.out + (uint64_t)blockIdx.x * p.out_stride;
    for (uint32_t i = threadIdx.x; i < per_tile * 4; i += blockDim.x) {
        const uint32_t t = i % 4, first_column = i / 4 * 64;
        Record<F> record;
        record.load(records + (uint64_t)(i / 4) * F::RECORD_BYTES, row % 8 * 4 + t);
#pragma unroll
        for (int c = 0; c < 2; c++) {
            if (first_column + 32 * c >= p.columns) continue;
            float low[8], high[8];
            values_of<F>(record, c, 0, low);
            values_of<F>(record, c, 1, high);
            if (row % 16 < 8)
                put_f32<F>(low, out + first_column + 32 * c, t);
            else
                put_f32<F>(high, out + first_column + 32 * c, t);
        }
    }
}

}  // namespace linear

#define REPACK(NAME, G, F)                                                                                        \
    extern "C" __global__ void __launch_bounds__(256) linear_repack_##NAME(                                       \
        const __grid_constant__ LinearRepackParams p) {                                                           \
        linear::repack<linear::G, linear::F>(p);                                                                  \
    }
#define DEQUANTIZE(NAME, F, SUFFIX, T)                                                                            \
    extern "C" __global__ void __launch_bounds__(256) linear_dequantize_##NAME##_##SUFFIX(                        \
        const __grid_constant__ LinearDequantizeParams p) {                                                       \
        linear::dequantize<linear::T, linear::F>(p);                                                              \
    }
#define FROM_RECORDS(NAME, F)                                                                                     \
    DEQUANTIZE(NAME, F, bf16, Bf16)                                                                               \
    DEQUANTIZE(NAME, F, f16, F16)                                                                                 \
    extern "C" __global__ void __launch_bounds__(256) linear_embed_##NAME(                                        \
        const __grid_constant__ LinearQuantEmbedParams p) {                                                       \
        linear::embed<linear::F>(p);                                                                              \
    }

namespace linear {
using Q4_0 = Simple<4, false>;
using Q4_1 = Simple<4, true>;
using Q5_0 = Simple<5, false>;
using Q5_1 = Simple<5, true>;
using Q4_K = K<4>;
using Q5_K = K<5>;
}  // namespace linear

REPACK(q4_0, Q4_0, Q4)
REPACK(q4_1, Q4_1, Q4Min)
REPACK(q5_0, Q5_0, Q5)
REPACK(q5_1, Q5_1, Q5Min)
REPACK(q8_0, Q8_0, Q8)
REPACK(q4_k, Q4_K, Q4K)
REPACK(q5_k, Q5_K, Q5K)
REPACK(q6_k, Q6_K, Q6K)
FROM_RECORDS(q4, Q4)
FROM_RECORDS(q4min, Q4Min)
FROM_RECORDS(q4k, Q4K)
FROM_RECORDS(q5, Q5)
FROM_RECORDS(q5min, Q5Min)
FROM_RECORDS(q5k, Q5K)
FROM_RECORDS(q6k, Q6K)
FROM_RECORDS(q8, Q8)
