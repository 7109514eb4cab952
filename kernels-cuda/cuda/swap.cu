// Rows that are swapped between the device and pinned memory of the host, where they are too short or too scattered for
// copies of their own.
//
// swap_rows: any grid, 512 threads; as few blocks as fill the link, since the steps beside it need the rest. Work item
// i is row i % num_pairs of layer i / num_pairs. All addresses and row_bytes are multiples of 16. No row stands twice
// on the side that is written.

#include <cstdint>

constexpr int MAX_LAYERS = 96;
constexpr int MAX_PAIRS = 256;
constexpr int THREADS = 512;
// Loads in flight a thread: the host is a microsecond away.
constexpr int UNROLL = 4;

struct SwapLayer {
    char *device;
    char *host;
};

struct SwapRowsParams {
    SwapLayer layers[MAX_LAYERS];
    // (row on the device, row on the host)
    uint2 pairs[MAX_PAIRS];
    uint64_t row_bytes;
    uint32_t num_layers;
    uint32_t num_pairs;
    uint32_t to_host;
    uint32_t padding;
};

__device__ void copy_row(const uint4 *__restrict__ from, uint4 *__restrict__ to, uint64_t n) {
    for (uint64_t base = 0; base < n; base += THREADS * UNROLL) {
        uint4 values[UNROLL];
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            const uint64_t at = base + i * THREADS + threadIdx.x;
            if (at < n) values[i] = from[at];
        }
#pragma unroll
        for (int i = 0; i < UNROLL; ++i) {
            const uint64_t at = base + i * THREADS + threadIdx.x;
            if (at < n) to[at] = values[i];
        }
    }
}

extern "C" __global__ void __launch_bounds__(THREADS) swap_rows(const __grid_constant__ SwapRowsParams p) {
    const uint32_t num_items = p.num_layers * p.num_pairs;
    for (uint32_t item = blockIdx.x; item < num_items; item += gridDim.x) {
        const SwapLayer &layer = p.layers[item / p.num_pairs];
        const uint2 pair = p.pairs[item % p.num_pairs];
        char *device = layer.device + pair.x * p.row_bytes;
        char *host = layer.host + pair.y * p.row_bytes;
        const char *from = p.to_host ? device : host;
        copy_row((const uint4 *)from, (uint4 *)(p.to_host ? host : device), p.row_bytes / 16);
    }
}
