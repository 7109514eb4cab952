// Dense linear layers for few tokens: out[t, r] = sum_k x[t, k] w[r, k] + bias[r], at the speed of memory.
//
// A warp owns 8 EIGHTS rows of the weight and a slice of the columns. A block has row_groups x slices warps; the sums of the
// slices are added in order through shared memory. Weights are the A side of m16n8k16, tokens the B side, eight a tile.
// The columns of a chunk of 32 are permuted alike on both sides (lane t of a group of four takes columns 8t..8t+8, half
// of them for each of two products), so that every access is 16 bytes and no fragment needs a shuffle.
//
// Slice s of S takes the pairs of chunks s, s + S, s + 2S, ...: at any time the block reads one run of each row, which
// memory likes better than many short ones, and a pair is a line of 128 bytes.
//
// Weights come by cp.async through a ring of shared memory that the warp shares with nobody: a lane reads what it copied
// itself, so there is no barrier, and all but the oldest chunk of the ring are in flight all the time. (A ring of
// registers does not work: loads in flight share six scoreboards, and waiting for one waits for its neighbours.) The
// first chunks are under way before the kernel that writes x has ended.
//
// The order of the sums depends on the columns and the number of slices alone: a token's result has the same bits in any
// batch.
//
// Grid [ceil(rows / (8 EIGHTS row_groups))], block 32 x (1..16 warps), dynamic shared memory warps x RING kB.
// columns % 64 == 0; weight and x rows start at multiples of 16 bytes; num_tokens <= 8 NT.
// hot: linear_few_*
#include "linear_common.cuh"

struct LinearFewParams {
    uint64_t weight;  // [rows, weight_stride] T
    uint64_t x;       // [num_tokens, x_stride] T
    linear::Output out;
    uint32_t columns;
    uint32_t weight_stride;
    uint32_t x_stride;
    uint32_t row_groups;
};

namespace linear {

constexpr int CHUNK = 32;

template <typename T, int NT, int EIGHTS, int RING>
static __device__ __forceinline__ void few(const LinearFewParams& p) {
    constexpr uint32_t ROWS = 8 * EIGHTS, RT = (EIGHTS + 1) / 2, STAGE_BYTES = EIGHTS * 512;
    constexpr uint32_t WARP_BYTES = RING * 1024, STAGES = WARP_BYTES / STAGE_BYTES;
    constexpr int AHEAD = NT == 1 ? 4 : 2;
    static_assert(STAGES % 2 == 0, "a stage holds the same half of a pair every time");
    static_assert(8 * NT * (ROWS + 4) * 4 <= WARP_BYTES, "the sums fit the ring");
    extern __shared__ __align__(128) char rings[];
    let_next_start();

    const uint32_t warp = threadIdx.x / 32, lane = threadIdx.x % 32, g = lane / 4, t = lane % 4;
    const uint32_t num_slices = blockDim.x / 32 / p.row_groups, group = warp % p.row_groups, slice = warp / p.row_groups;
    const uint32_t first_row = blockIdx.x * ROWS * p.row_groups;
    const uint32_t pairs = p.columns / (2 * CHUNK);
    const uint32_t chunks = slice < pairs ? (pairs - slice + num_slices - 1) / num_slices * 2 : 0;
    // Bytes from the first chunk of a pair to the second, and from there to the next pair.
    constexpr uint32_t STEP = CHUNK * 2;
    const uint32_t pair_bytes = num_slices * 2 * STEP, hop = pair_bytes - STEP;

    const char* w[EIGHTS];
#pragma unroll
    for (int e = 0; e < EIGHTS; e++) {
        const uint32_t row = min(first_row + ROWS * group + 8 * e + g, p.out.rows - 1);
        w[e] = (const char*)p.weight + ((uint64_t)row * p.weight_stride + slice * 2 * CHUNK + 8 * t) * 2;
    }
    const uint32_t ring = __cvta_generic_to_shared(rings) + warp * WARP_BYTES + lane * 16;
    auto fetch = [&](uint32_t chunk, int half) {
        if (chunk < chunks) {
            const uint32_t to = ring + chunk % STAGES * STAGE_BYTES;
#pragma unroll
            for (int e = 0; e < EIGHTS; e++) {
                copy_async(to + e * 512, w[e]);
                w[e] += half ? hop : STEP;
            }
        }
        commit_copies();
    };
#pragma unroll
    for (int s = 0; s < STAGES; s++) fetch(s, s % 2);

    float c[RT][NT][4] = {};
    wait_for_previous();
    if (chunks > 0) {
        // Tokens come from the second cache, AHEAD chunks before they are used.
        const char* x[NT];
        uint4 b[AHEAD][NT];
        auto load_tokens = [&](uint4 (&to)[NT], int chunk) {
#pragma unroll
            for (int n = 0; n < NT; n++) to[n] = load_shared_by_many(x[n] + chunk / 2 * pair_bytes + chunk % 2 * STEP);
        };
#pragma unroll
        for (int n = 0; n < NT; n++) {
            const uint32_t token = min(8u * n + g, p.out.num_tokens - 1);
            x[n] = (const char*)p.x + ((uint64_t)token * p.x_stride + slice * 2 * CHUNK + 8 * t) * 2;
        }
#pragma unroll
        for (int j = 0; j < AHEAD; j++)
            if (j < chunks) load_tokens(b[j], j);
        for (uint32_t chunk = 0; chunk < chunks; chunk += AHEAD) {
#pragma unroll
            for (int j = 0; j < AHEAD; j++) {
                if (chunk + j >= chunks) break;
                wait_for_copies<STAGES - 1>();
                const uint32_t from = ring + (chunk + j) % STAGES * STAGE_BYTES;
#pragma unroll
                for (int r = 0; r < RT; r++) {
                    const uint4 lo = load_shared(from + r * 1024);
                    const uint4 hi = EIGHTS > 1 ? load_shared(from + r * 1024 + 512) : make_uint4(0, 0, 0, 0);
#pragma unroll
                    for (int n = 0; n < NT; n++) {
                        const uint4 v = b[j][n];
                        T::mma(c[r][n], lo.x, hi.x, lo.y, hi.y, v.x, v.y);
                        T::mma(c[r][n], lo.z, hi.z, lo.w, hi.w, v.z, v.w);
                    }
                }
                if (chunk + j + AHEAD < chunks) load_tokens(b[j], AHEAD + j);
                fetch(chunk + j + STAGES, j % 2);
            }
#pragma unroll
            for (int n = 0; n < NT; n++) x[n] += AHEAD / 2 * pair_bytes;
        }
    }
    store_sums<T, NT, EIGHTS>(c, p.out, first_row, p.row_groups, num_slices, (float*)rings, WARP_BYTES / 4);
}

}  // namespace linear

#define FEW(TOKENS, NT, ROWS, RING, SUFFIX, T)                                                                     \
    extern "C" __global__ void __launch_bounds__(512)                                                              \
        linear_few_t##TOKENS##_r##ROWS##_k##RING##_##SUFFIX(const __grid_constant__ LinearFewParams p) {           \
        linear::few<linear::T, NT, ROWS / 8, RING>(p);                                                             \
    }

// What kernels-cuda/src/linear/plan.rs chooses from.
#define FEW_ALL(SUFFIX, T)         \
    FEW(8, 1, 16, 4, SUFFIX, T)    \
    FEW(8, 1, 16, 8, SUFFIX, T)    \
    FEW(16, 2, 16, 8, SUFFIX, T)   \
    FEW(16, 2, 32, 8, SUFFIX, T)   \
    FEW(32, 4, 16, 8, SUFFIX, T)   \
    FEW(32, 4, 32, 8, SUFFIX, T)

FEW_ALL(bf16, Bf16)
FEW_ALL(f16, F16)
