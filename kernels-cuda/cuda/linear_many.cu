// Dense linear layers for many tokens, without a library: out[t, r] = sum_k x[t, k] w[r, k] + bias[r].
//
// Every output is the same chain of m16n8k16 products as in linear_few.cu, with the weight on the same side, the columns
// in the same places and the same slices added in the same order: a token's result has the same bits there and here, in
// any batch. That serves --deterministic, and machines without cuBLASLt.
//
// A block of 8 warps makes 128 rows x 128 tokens, a warp 64 x 32. Tiles of 64 columns pass through a ring of shared
// memory by cp.async: rows of 32 columns (64 bytes) follow each other without a gap, so that the 16-byte reads of eight
// lanes, two rows, touch every bank once.
//
// Grid [ceil(num_tokens / 128), ceil(rows / 128)], block 256, dynamic shared memory 3 x 32 kB.
// columns % 64 == 0; weight and x rows start at multiples of 16 bytes.
// hot: linear_many_*
#include "linear_common.cuh"

struct LinearManyParams {
    uint64_t weight;  // [rows, weight_stride] T
    uint64_t x;       // [num_tokens, x_stride] T
    linear::Output out;
    uint32_t columns;
    uint32_t weight_stride;
    uint32_t x_stride;
    uint32_t num_slices;  // of the columns, as linear_few.cu shares them out
};

namespace linear {

constexpr int TILE = 128, CHUNK = 32, STAGES = 3;
constexpr int CHUNK_BYTES = TILE * CHUNK * 2, STAGE_BYTES = 4 * CHUNK_BYTES;

// Brings 64 columns of 128 rows: two chunks, each a dense matrix of 128 x 32. Every thread moves 16 bytes four times.
static __device__ __forceinline__ void copy_tile(uint32_t to, const char* from, uint64_t stride_bytes, uint32_t first,
                                                 uint32_t last, uint32_t column) {
#pragma unroll
    for (int i = 0; i < 4; i++) {
        const uint32_t at = threadIdx.x + 256 * i, piece = at % 8, row = at / 8;
        copy_async(to + piece / 4 * CHUNK_BYTES + row * 64 + piece % 4 * 16,
                   from + min(first + row, last) * stride_bytes + (column + piece * 8) * 2);
    }
}

template <typename T>
static __device__ __forceinline__ void many(const LinearManyParams& p) {
    extern __shared__ __align__(128) char tiles[];
    let_next_start();
    const uint32_t warp = threadIdx.x / 32, g = threadIdx.x % 32 / 4, t = threadIdx.x % 4;
    const uint32_t first_token = blockIdx.x * TILE, first_row = blockIdx.y * TILE;
    const uint32_t warp_row = warp % 2 * 64, warp_token = warp / 2 * 32;
    const uint32_t steps = p.columns / 64, shared = __cvta_generic_to_shared(tiles);
    wait_for_previous();

    // The pairs of chunks in the order of the slices: 0, S, 2S, ..., 1, 1 + S, ...
    struct Walk {
        uint32_t slice, pair;
        __device__ void next(uint32_t steps, uint32_t num_slices) {
            pair += num_slices;
            if (pair >= steps) pair = ++slice;
        }
    } ahead = {}, here = {};
    auto fetch = [&](uint32_t step) {
        if (step < steps) {
            const uint32_t to = shared + step % STAGES * STAGE_BYTES;
            copy_tile(to, (const char*)p.weight, (uint64_t)p.weight_stride * 2, first_row, p.out.rows - 1, ahead.pair * 64);
            copy_tile(to + 2 * CHUNK_BYTES, (const char*)p.x, (uint64_t)p.x_stride * 2, first_token,
                      p.out.num_tokens - 1, ahead.pair * 64);
            ahead.next(steps, p.num_slices);
        }
        commit_copies();
    };
    float total[4][4][4] = {}, c[4][4][4] = {};
#pragma unroll
    for (int s = 0; s < STAGES - 1; s++) fetch(s);
    for (uint32_t step = 0; step < steps; step++) {
        wait_for_copies<STAGES - 2>();
        __syncthreads();
        fetch(step + STAGES - 1);
        const uint32_t stage = shared + step % STAGES * STAGE_BYTES;
#pragma unroll
        for (uint32_t chunk = 0; chunk < 2; chunk++) {
            const uint32_t w = stage + chunk * CHUNK_BYTES + (warp_row + g) * 64 + t * 16;
            const uint32_t x = stage + (2 + chunk) * CHUNK_BYTES + (warp_token + g) * 64 + t * 16;
            uint4 b[4];
#pragma unroll
            for (int n = 0; n < 4; n++) b[n] = load_shared(x + n * 8 * 64);
#pragma unroll
            for (int r = 0; r < 4; r++) {
                const uint4 lo = load_shared(w + r * 16 * 64), hi = load_shared(w + (r * 16 + 8) * 64);
#pragma unroll
                for (int n = 0; n < 4; n++) {
                    T::mma(c[r][n], lo.x, hi.x, lo.y, hi.y, b[n].x, b[n].y);
                    T::mma(c[r][n], lo.z, hi.z, lo.w, hi.w, b[n].z, b[n].w);
                }
            }
        }
        const uint32_t slice = here.slice;
        here.next(steps, p.num_slices);
        if (here.slice != slice) {
#pragma unroll
            for (int i = 0; i < 64; i++) {
                (&total[0][0][0])[i] += (&c[0][0][0])[i];
                (&c[0][0][0])[i] = 0;
            }
        }
    }
#pragma unroll
    for (int r = 0; r < 4; r++)
#pragma unroll
        for (int n = 0; n < 4; n++)
#pragma unroll
            for (int i = 0; i < 4; i++) {
                const uint32_t token = first_token + warp_token + 8 * n + 2 * t + i % 2;
                const uint32_t row = first_row + warp_row + 16 * r + g + 8 * (i / 2);
                if (token < p.out.num_tokens && row < p.out.rows)
                    store_sum<T>(p.out, token, row, total[r][n][i]);
            }
}

}  // namespace linear

extern "C" __global__ void __launch_bounds__(256, 1) linear_many_bf16(const __grid_constant__ LinearManyParams p) {
    linear::many<linear::Bf16>(p);
}
extern "C" __global__ void __launch_bounds__(256, 1) linear_many_f16(const __grid_constant__ LinearManyParams p) {
    linear::many<linear::F16>(p);
}
