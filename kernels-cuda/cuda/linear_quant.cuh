// Block-quantized weights as the kernels here hold them.
//
// GGUF blocks are repacked into records of 16 rows x 64 columns, row tile by row tile, inside it along the columns. A
// record is what one warp reads at once, in the order of its lanes; lane (g, t) = (lane / 4, lane % 4) owns rows g and
// g + 8, and of each 32 columns eight: those that m16n8k16 wants from it, see Order.
//
//   quants   4, 5, 6 bits: 16 bytes a lane: words (row g, columns 0..32), (row g + 8, same), (g, 32..64), (g + 8, same);
//            pair i of a word's eight 4-bit quants is bits 4i.. and 16 + 4i..: a mask takes two at once.
//            8 bits: 2 x 16 bytes a lane, one for each 32 columns: two words of row g, two of row g + 8; pair i of four
//            is bits 8 (i % 2).. and 16 + 8 (i % 2).. of word i / 2.
//   high     5 bits: a word a lane, pair i of quant word w in bits 4w + i and 16 + 4w + i.
//            6 bits: two words a lane, pair i of quant word w in bits 8 (w % 2) + 2i.. and 16 + those of word w / 2.
//   scales   lanes of one g read the same ones, of rows g and g + 8:
//            plain: an f16 for each 32 columns, with a minimum beside it where the format has one;
//            K: per row d and dmin (f16), then two pairs of a six-bit scale and minimum, a byte each;
//            6 bits: per row four signed bytes, for 16 columns each, then d (f16) and padding.
//
// value = scale * (quant - OFFSET) + minimum, where the K formats' scale is d * scale and their minimum -dmin * minimum.
#pragma once

#include "linear_common.cuh"

namespace linear {

template <int BITS_, bool HAS_MIN_, int OFFSET_, bool IS_K_ = false>
struct Format {
    static constexpr int BITS = BITS_, OFFSET = OFFSET_;
    static constexpr bool HAS_MIN = HAS_MIN_, IS_K = IS_K_;
    static constexpr int GROUP = BITS == 6 ? 16 : 32;
    static constexpr int QUANT_BYTES = BITS == 8 ? 1024 : 512;
    static constexpr int HIGH_BYTES = BITS == 5 ? 128 : BITS == 6 ? 256 : 0;
    static constexpr int SCALE_BYTES = HAS_MIN || IS_K ? 16 : 8;  // of a lane
    static constexpr int RECORD_BYTES = QUANT_BYTES + HIGH_BYTES + 8 * SCALE_BYTES;
};
using Q4 = Format<4, false, 8>;
using Q4Min = Format<4, true, 0>;
using Q4K = Format<4, true, 0, true>;
using Q5 = Format<5, false, 16>;
using Q5Min = Format<5, true, 0>;
using Q5K = Format<5, true, 0, true>;
using Q6K = Format<6, false, 32, true>;
using Q8 = Format<8, false, 0>;

// Column, within 32, of element `i` (0..8) of lane t. With scales for 32 columns a lane owns a run of eight, so that
// activations load as 16 bytes; with scales for 16 each of the two products must stay inside a group.
template <typename F>
static __device__ __forceinline__ constexpr int column_of(int t, int i) {
    return F::GROUP == 32 ? 8 * t + i : i / 4 * 16 + 4 * t + i % 4;
}

// (a & mask) | base in one instruction; the compiler makes two of it where both are constants.
static __device__ __forceinline__ uint32_t and_or(uint32_t a, uint32_t mask, uint32_t base) {
    uint32_t d;
    asm("lop3.b32 %0, %1, %2, %3, 0xea;" : "=r"(d) : "r"(a), "r"(mask), "r"(base));
    return d;
}

// What a lane holds of a record.
template <typename F>
struct Record {
    uint32_t quants[F::QUANT_BYTES / 128];
    uint32_t high[2];
    uint32_t scales[F::SCALE_BYTES / 4];

    __device__ __forceinline__ void load(const char* record, int lane) { load_by<false>(record, lane); }
    __device__ __forceinline__ void load_shared(const char* record, int lane) { load_by<true>(record, lane); }

    // Pair `i` (of four) of row g + 8 `half` in the 32 columns `c`, as raw bits in the low ends of the two halves.
    __device__ __forceinline__ uint32_t pair(int c, int half, int i) const {
        if (F::BITS == 8) return quants[4 * c + 2 * half + i / 2] >> (8 * (i % 2)) & 0x00ff00ff;
        return pair_over(c, half, i, 0);
    }

    // The same, of less than eight bits, with `base` above them.
    __device__ __forceinline__ uint32_t pair_over(int c, int half, int i, uint32_t base) const {
        const int w = 2 * c + half;
        if (F::BITS == 5) base = and_or(shift_left(high[0], 4 - (4 * w + i)), 0x00100010, base);
        if (F::BITS == 6) base = and_or(shift_left(high[w / 2], 4 - (8 * (w % 2) + 2 * i)), 0x00300030, base);
        return and_or(quants[w] >> (4 * i), 0x000f000f, base);
    }

    // Scale `n` of the row: for each 32 columns c of row half h it is 2c + h, for each 16 (part s of c) 4c + 2s + h.
    __device__ __forceinline__ float scale(int n) const {
        if (F::GROUP == 16) return half_of(4 * (n % 2) + 2) * (float)(signed char)byte_of(scales[2 * (n % 2)], n / 2);
        if (F::IS_K) return half_of(4 * (n % 2)) * (float)byte_of(scales[2 * (n % 2) + 1], n / 2 * 2);
        return half_of(F::HAS_MIN ? 2 * n : n);
    }
    __device__ __forceinline__ float minimum(int n) const {
        if (F::IS_K) return half_of(4 * (n % 2) + 1) * -(float)byte_of(scales[2 * (n % 2) + 1], n / 2 * 2 + 1);
        return half_of(2 * n + 1);
    }

  private:
    static __device__ __forceinline__ uint32_t shift_left(uint32_t v, int n) { return n >= 0 ? v << n : v >> -n; }

    // From shared memory, or from global memory where it is read once.
    template <bool SHARED, typename V>
    static __device__ __forceinline__ void read(uint32_t* to, const char* from) {
        const V v = SHARED ? *(const V*)from : __ldcs((const V*)from);
        memcpy(to, &v, sizeof v);
    }
    template <bool SHARED>
    __device__ __forceinline__ void load_by(const char* record, int lane) {
#pragma unroll
        for (int i = 0; i < F::QUANT_BYTES / 512; i++) read<SHARED, uint4>(quants + 4 * i, record + 512 * i + 16 * lane);
        const char* p = record + F::QUANT_BYTES;
        if constexpr (F::BITS == 5) read<SHARED, uint32_t>(high, p + 4 * lane);
        if constexpr (F::BITS == 6) read<SHARED, uint2>(high, p + 8 * lane);
        p += F::HIGH_BYTES + lane / 4 * F::SCALE_BYTES;
        if constexpr (F::SCALE_BYTES == 8)
            read<SHARED, uint2>(scales, p);
        else
            read<SHARED, uint4>(scales, p);
    }
    static __device__ __forceinline__ uint8_t byte_of(uint32_t word, int i) { return word >> (8 * i); }
    __device__ __forceinline__ float half_of(int i) const {
        return __half2float(__ushort_as_half((unsigned short)(scales[i / 2] >> (16 * (i % 2)))));
    }
};

// (quant - OFFSET) of a pair, exactly, in the activation type: the bits become the mantissa of 128 (bf16) or 1024 (f16),
// which is then subtracted. Eight bits fit bf16's mantissa in two parts: the lower seven, and the sign as 128 or 256.
template <typename F>
static __device__ __forceinline__ uint32_t expand(Bf16, const Record<F>& record, int c, int half, int i) {
    if (F::BITS != 8)
        return subtract_bf16(record.pair_over(c, half, i, 0x43004300), 0x00010001u * (0x4300 + F::OFFSET));
    const uint32_t q = record.pair(c, half, i);
    return subtract_bf16(and_or(q, 0x007f007f, 0x43004300), and_or(q, 0x00800080, 0x43004300));
}

template <typename F>
static __device__ __forceinline__ uint32_t expand(F16, const Record<F>& record, int c, int half, int i) {
    if (F::BITS != 8)
        return subtract_f16(record.pair_over(c, half, i, 0x64006400), 0x00010001u * (0x6400 + F::OFFSET));
    return subtract_f16(record.pair(c, half, i) ^ 0x64806480, 0x64806480);
}

// The integer of one element of a pair.
template <typename F>
static __device__ __forceinline__ int quant_of(uint32_t pair, int which) {
    const int q = pair >> (16 * which) & 0xff;
    return F::BITS == 8 ? (int)(signed char)q : q - F::OFFSET;
}

// The eight values of row g + 8 `half` in the 32 columns `c` that a lane owns.
template <typename F>
static __device__ __forceinline__ void values_of(const Record<F>& record, int c, int half, float (&out)[8]) {
#pragma unroll
    for (int i = 0; i < 8; i++) {
        const int n = F::GROUP == 16 ? 4 * c + 2 * (i / 4) + half : 2 * c + half;
        const float product = __fmul_rn(record.scale(n), (float)quant_of<F>(record.pair(c, half, i / 2), i % 2));
        out[i] = F::HAS_MIN ? product + record.minimum(n) : product;
    }
}

}  // namespace linear
