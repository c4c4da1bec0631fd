// What the kernels below are made of. nvcc and NVRTC build them for a GPU; any C++ compiler builds them for a simulated
// one, which runs the threads of a block in turn from barrier to barrier and counts what they load and store.
//
// Words are float32. Rows of a matrix in memory start at a sector of 8 words. A tile lies in shared memory without gaps.
// Whatever moves a tile touches each of its sectors in one instruction of one warp: that makes the traffic predictable.
#ifdef __CUDACC__

#define KERNEL(name) extern "C" __global__ void __launch_bounds__(512) name
#define EACH __device__ __forceinline__
#define START const int tid = threadIdx.x, threads = blockDim.x, block = blockIdx.x, blocks = gridDim.x; \
    extern __shared__ float cache[]; (void)tid, (void)threads, (void)block, (void)blocks, (void)cache;
#define SECTION                                    // what the threads may do without waiting for each other
#define BARRIER __syncthreads();
#define UNROLL _Pragma("unroll")
#define UNROLL_BY_4 _Pragma("unroll 4")
#define LOAD(address, instruction) __ldcg(address)                // past L1
#define STORE(address, value, instruction) __stcg(address, value)
#define MINUS_INFINITY (-__int_as_float(0x7f800000))
typedef float* Tile;
#define TILE(name, at, words) float* const name = cache + (at);

#else

#include <math.h>
#include <stdlib.h>

// The simulated GPU. `where` tells the instructions of a warp apart: those of different statements, of different rounds
// of a statement's loop, and of different warps.
struct Access { unsigned long long where, sector; };
struct Log { Access* seen; long long count, room, words, sectors; };
struct Simulation {
    int block, blocks, threads, backwards, thread, statement;
    long long faults, room;
    float* cache;
    Log loads, stores;
    struct { float* start; long long words; } memory[64];
    int tensors;
};
static Simulation gpu;

struct Tile {
    float* words; int room;
    float& operator[](int at) const {
        if (at >= 0 && at < room) return words[at];
        static float nowhere; ++gpu.faults; return nowhere;
    }
    Tile operator+(int at) const { Tile part = {words + at, room - at}; return part; }
};

static int compare(const void* a, const void* b) {
    const Access *x = (const Access*)a, *y = (const Access*)b;
    return x->where != y->where ? (x->where < y->where ? -1 : 1) : x->sector < y->sector ? -1 : x->sector > y->sector;
}
// Whether the address is in memory. What is outside is counted, and left alone: it belongs to the process that simulates.
static bool note(Log& log, const float* address, int instruction) {
    bool inside = false;
    for (int i = 0; i < gpu.tensors; ++i)
        inside |= address >= gpu.memory[i].start && address < gpu.memory[i].start + gpu.memory[i].words;
    gpu.faults += !inside;
    if (log.count == log.room) log.seen = (Access*)realloc(log.seen, (log.room = 2 * log.room + 64) * sizeof(Access));
    Access access = {((unsigned long long)gpu.statement << 48) + ((unsigned long long)instruction << 16) + gpu.thread / 32,
                     (unsigned long long)address / 32};
    log.seen[log.count++] = access;
    ++log.words;
    return inside;
}
static float load(const float* address, int instruction) { return note(gpu.loads, address, instruction) ? *address : NAN; }
static void store(float* address, float value, int instruction) {
    if (note(gpu.stores, address, instruction)) *address = value;
}
static void coalesce(Log& log) {
    qsort(log.seen, log.count, sizeof(Access), compare);
    for (long long i = 0; i < log.count; ++i) log.sectors += i == 0 || compare(&log.seen[i - 1], &log.seen[i]) != 0;
    log.count = 0;
}
static int next_thread(int turn) {
    gpu.statement = 0;
    return gpu.thread = gpu.backwards ? gpu.threads - 1 - turn : turn;
}
static void barrier() { coalesce(gpu.loads); coalesce(gpu.stores); }
static void poison(float* words, long long count) { for (long long i = 0; i < count; ++i) words[i] = NAN; }

extern "C" void gpu_memory(float* start, long long words) {
    if (start == 0) gpu.tensors = 0;
    else { gpu.memory[gpu.tensors].start = start; gpu.memory[gpu.tensors++].words = words; }
}
extern "C" void gpu_launch(int blocks, int threads, long long shared_words, int backwards) {
    gpu.blocks = blocks; gpu.threads = threads; gpu.backwards = backwards; gpu.faults = 0; gpu.room = shared_words;
    gpu.loads.words = gpu.loads.sectors = gpu.stores.words = gpu.stores.sectors = 0;
    gpu.cache = (float*)realloc(gpu.cache, (shared_words + 1) * sizeof(float));
}
extern "C" void gpu_block(int block) { gpu.block = block; poison(gpu.cache, gpu.room); }
extern "C" void gpu_counts(long long* out) {
    out[0] = gpu.loads.words; out[1] = gpu.stores.words; out[2] = gpu.loads.sectors; out[3] = gpu.stores.sectors;
    out[4] = gpu.faults;
}

#define KERNEL(name) extern "C" void name
#define EACH static inline
#define START const int threads = gpu.threads, block = gpu.block, blocks = gpu.blocks; float* const cache = gpu.cache; \
    (void)threads, (void)block, (void)blocks, (void)cache;
#define SECTION for (int turn = 0, tid; turn < threads && (tid = next_thread(turn), true); ++turn)
#define BARRIER barrier();
#define UNROLL
#define UNROLL_BY_4
#define LOAD(address, instruction) load(address, instruction)
#define STORE(address, value, instruction) store(address, value, instruction)
#define MINUS_INFINITY (-INFINITY)
#define TILE(name, at, words_) Tile name = {cache + (at), (long long)(at) + (words_) <= gpu.room ? (words_) : 0};

#endif

EACH int smaller(int a, int b) { return a < b ? a : b; }
EACH int tiles_of(int length, int tile) { return (length + tile - 1) / tile; }
EACH int padded(int words) { return (words + 7) / 8 * 8; }

EACH void next_statement() {
#ifndef __CUDACC__
    ++gpu.statement;
#endif
}

// A part of a matrix in memory, and how lanes share its words: `lanes` neighbours take a sector, one word each.
struct Part {
    long long origin; int pitch, first, columns, sectors, lanes, items;
};
EACH Part part(int pitch, int row, int rows, int column, int columns) {
    Part p;
    p.sectors = (column + columns + 7) / 8 - column / 8;
    p.lanes = p.sectors > 1 ? 8 : columns > 4 ? 8 : columns > 2 ? 4 : columns;
    p.first = p.sectors > 1 ? -(column % 8) : 0;
    p.pitch = pitch, p.columns = columns, p.origin = (long long)row * pitch + column;
    p.items = rows * p.sectors * p.lanes;
    return p;
}
// The word that an item stands for; false where it stands for none.
EACH bool word_of(const Part& p, int item, int& row, int& column) {
    const int sector = item / p.lanes;
    row = sector / p.sectors;
    column = p.first + (sector - row * p.sectors) * 8 + item % p.lanes;
    return item < p.items && column >= 0 && column < p.columns;
}

EACH void read_tile(Tile tile, int width, const float* tensor, Part p, int tid, int threads) {
    const int DEEP = 4;  // loads in flight
    next_statement();
    for (int item = tid, round = 0; item < p.items; item += DEEP * threads, round += DEEP) {
        float value[DEEP];
        UNROLL for (int u = 0; u < DEEP; ++u) {
            int row, column;
            if (word_of(p, item + u * threads, row, column))
                value[u] = LOAD(tensor + p.origin + (long long)row * p.pitch + column, round + u);
        }
        UNROLL for (int u = 0; u < DEEP; ++u) {
            int row, column;
            if (word_of(p, item + u * threads, row, column)) tile[row * width + column] = value[u];
        }
    }
}
EACH void write_tile(float* tensor, Part p, Tile tile, int width, int tid, int threads) {
    next_statement();
    for (int item = tid, round = 0; item < p.items; item += threads, ++round) {
        int row, column;
        if (word_of(p, item, row, column))
            STORE(tensor + p.origin + (long long)row * p.pitch + column, tile[row * width + column], round);
    }
}
EACH void fill(float* tensor, Part p, float value, int tid, int threads) {
    next_statement();
    for (int item = tid, round = 0; item < p.items; item += threads, ++round) {
        int row, column;
        if (word_of(p, item, row, column)) STORE(tensor + p.origin + (long long)row * p.pitch + column, value, round);
    }
}
// tensor = the sum of its copies, which lie one after the other.
EACH void add_copies(float* tensor, Part p, const float* copies, long long size, int count, int tid, int threads) {
    next_statement();
    for (int item = tid, round = 0; item < p.items; item += threads, ++round) {
        int row, column;
        if (!word_of(p, item, row, column)) continue;
        const long long at = p.origin + (long long)row * p.pitch + column;
        float sum = 0;
        for (int copy = 0; copy < count; ++copy) sum += LOAD(copies + copy * size + at, round * count + copy);
        STORE(tensor + at, sum, round);
    }
}

// C (+)= A B. Entry (i, k) of A is A[i * a_i + k * a_k], entry (k, j) of B is B[k * b_k + j * b_j]. A thread makes R x S
// entries of C that are far apart, so that neighbours in a warp have neighbouring columns; where these lie far apart in
// B, each lane starts its sums at another term: both keep a warp's words in different banks.
template <int R, int S>
EACH void add_products(float (&sum)[R][S], Tile A, const int (&a)[R], Tile B, const int (&b)[S]) {
    float left[R], right[S];
    UNROLL for (int r = 0; r < R; ++r) left[r] = A[a[r]];
    UNROLL for (int s = 0; s < S; ++s) right[s] = B[b[s]];
    UNROLL for (int r = 0; r < R; ++r) {
        UNROLL for (int s = 0; s < S; ++s) sum[r][s] += left[r] * right[s];
    }
}
template <int R, int S>
EACH void multiply_entries(Tile C, int width, int rows, int columns, Tile A, int a_i, int a_k, Tile B, int b_k, int b_j,
                           int terms, bool add, int tid, int threads) {
    const int high = tiles_of(rows, R), wide = tiles_of(columns, S);
    for (int item = tid; item < high * wide; item += threads) {
        const int i = item / wide, j = item - i * wide;
        float sum[R][S];
        int a[R], b[S];
        UNROLL for (int r = 0; r < R; ++r) {
            a[r] = smaller(i + r * high, rows - 1) * a_i;
            UNROLL for (int s = 0; s < S; ++s) sum[r][s] = 0;
        }
        UNROLL for (int s = 0; s < S; ++s) b[s] = smaller(j + s * wide, columns - 1) * b_j;
        if (b_k == 1) {
            int k = tid % terms;
            for (int term = 0; term < terms; ++term) {
                add_products<R, S>(sum, A + k * a_k, a, B + k, b);
                k = k + 1 == terms ? 0 : k + 1;
            }
        } else {
            UNROLL_BY_4 for (int k = 0; k < terms; ++k) add_products<R, S>(sum, A + k * a_k, a, B + k * b_k, b);
        }
        UNROLL for (int r = 0; r < R; ++r) {
            UNROLL for (int s = 0; s < S; ++s) {
                if (i + r * high < rows && j + s * wide < columns) {
                    const int at = (i + r * high) * width + j + s * wide;
                    C[at] = add ? C[at] + sum[r][s] : sum[r][s];
                }
            }
        }
    }
}
EACH void multiply(Tile C, int width, int rows, int columns, Tile A, int a_i, int a_k, Tile B, int b_k, int b_j, int terms,
                   bool add, int tid, int threads) {
    next_statement();
    if (rows * columns >= 8 * threads)
        multiply_entries<4, 4>(C, width, rows, columns, A, a_i, a_k, B, b_k, b_j, terms, add, tid, threads);
    else if (rows * columns >= 4 * threads)
        multiply_entries<4, 2>(C, width, rows, columns, A, a_i, a_k, B, b_k, b_j, terms, add, tid, threads);
    else
        multiply_entries<1, 1>(C, width, rows, columns, A, a_i, a_k, B, b_k, b_j, terms, add, tid, threads);
}

// Every entry (r, c) of a tile, a thread each; every row.
#define ENTRIES(r, c, rows, columns)                                               \
    for (int item = tid, r, c; item < (rows) * (columns) && (r = item / (columns), c = item - r * (columns), true); \
         item += threads)
#define ROWS(r, rows) for (int r = tid; r < (rows); r += threads)
