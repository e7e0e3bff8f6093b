// What steps of products in AMX tiles take, in cycles: two by two tiles of sums, 32 products of each. And how fast
// weights come from memory for a single row of activations, or to be copied, in GB/s.
//
//     gcc -O2 -o tiles bench/tiles.c && taskset -c 1 ./tiles
//
// One thread; the best of many short runs in turns, as others may use the same core. The unit is a 64th of what four
// multiplications take that wait for nothing: 64 cycles a step are the most that AMX multiplies, 192 with three parts.

#define _GNU_SOURCE
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <x86intrin.h>

#define LOAD(t, p, s) asm volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((long)(s)) : "memory")
// The same, past the first-level cache.
#define LOAD_ONCE(t, p, s) asm volatile("tileloaddt1 (%0,%1,1), %%tmm" #t ::"r"(p), "r"((long)(s)) : "memory")
#define STORE(t, p, s) asm volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((long)(s)) : "memory")
#define MULTIPLY(c, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#define ZERO(t) asm volatile("tilezero %%tmm" #t ::)
#define ZEROS ZERO(0); ZERO(1); ZERO(2); ZERO(3)
#define LOAD_SUMS(s) LOAD(0, s, 64); LOAD(1, s + 1024, 64); LOAD(2, s + 2048, 64); LOAD(3, s + 3072, 64)
#define STORE_SUMS(s) STORE(0, s, 64); STORE(1, s + 1024, 64); STORE(2, s + 2048, 64); STORE(3, s + 3072, 64)
#define TWO_BY_TWO(x) \
    LOAD(6, x, 64); MULTIPLY(0, 4, 6); MULTIPLY(2, 5, 6); LOAD(7, (x) + 1024, 64); MULTIPLY(1, 4, 7); MULTIPLY(3, 5, 7)
#define WEIGHTS(w, stride) LOAD(4, w, stride); LOAD(5, (w) + 16 * (stride), stride)

static char *weights, *x, *sums, *zeros;

static void fetch(const char *from) {
    for (int line = 0; line < 32; line++) asm volatile("prefetcht0 (%0)" ::"r"(from + 64 * line));
}

static void products(int steps) {
    ZEROS;
    for (int i = 0; i < steps; i++) { MULTIPLY(0, 4, 6); MULTIPLY(2, 5, 6); MULTIPLY(1, 4, 7); MULTIPLY(3, 5, 7); }
}

// Weights of so many steps in turn: eight are in the first-level cache, 256 in the second.
static void step_by_step(int steps, int of) {
    ZEROS;
    for (int i = 0; i < steps; i++) { WEIGHTS(weights + i % of * 2048, 64); TWO_BY_TWO(x + i % 8 * 2048); }
}
static void first_level(int steps) { step_by_step(steps, 8); }
// A processor that has to save power multiplies what changes from product to product more slowly than zeros.
static void first_level_of_zeros(int steps) {
    ZEROS;
    for (int i = 0; i < steps; i++) { WEIGHTS(zeros + i % 8 * 2048, 64); TWO_BY_TWO(zeros + i % 8 * 2048 + 16384); }
}
static void second_level(int steps) { step_by_step(steps, 256); }

static void three_parts(int steps) {
    ZEROS;
    for (int i = 0; i < steps; i++) {
        WEIGHTS(weights + i % 4 * 2048, 64);
        for (int part = 0; part < 3; part++) { TWO_BY_TWO(x + i % 4 * 6144 + part * 2048); }
    }
}

// Groups of four pairs, whose sums wait in memory for the next steps.
static void groups(int steps, int depth, int parts) {
    for (int i = 0; i < steps;) {
        for (int pair = 0; pair < 4; pair++) {
            char *own = sums + pair * 4096;
            LOAD_SUMS(own);
            for (int step = 0; step < depth; step++, i++) {
                WEIGHTS(weights + i % 256 * 2048, 64);
                for (int part = 0; part < parts; part++) { TWO_BY_TWO(x + (step * parts + part) * 2048); }
            }
            STORE_SUMS(own);
        }
    }
}
static void groups_of_eight(int steps) { groups(steps, 8, 1); }
static void groups_of_three_parts(int steps) { groups(steps, 4, 3); }

// Sixteen steps of activations, past which weights go by.
static void sixteen_steps(int steps) {
    ZEROS;
    for (int i = 0; i < steps; i++) { WEIGHTS(weights + i % 256 * 2048, 64); TWO_BY_TWO(x + i % 16 * 2048); }
}
static void sixteen_steps_once(int steps) {
    ZEROS;
    for (int i = 0; i < steps; i++) {
        LOAD_ONCE(4, weights + i % 256 * 2048, 64); LOAD_ONCE(5, weights + i % 256 * 2048 + 1024, 64);
        TWO_BY_TWO(x + i % 16 * 2048);
    }
}

// The same, with the sums of four pairs that take turns: each tile is stored right before the next one's takes its place.
static void taking_turns(int steps) {
    for (int i = 0, pair = 0; i < steps; pair++) {
        char *own = sums + pair % 4 * 5120, *before = sums + (pair + 3) % 4 * 5120;
        for (int step = 0; step < 16; step++, i++) {
            char *w = weights + i % 256 * 2048, *row = x + step * 2048;
            LOAD_ONCE(4, w, 64); LOAD_ONCE(5, w + 1024, 64);
            LOAD(6, row, 64);
            if (step == 0) { STORE(0, before, 64); LOAD(0, own, 64); }
            MULTIPLY(0, 4, 6);
            if (step == 0) { STORE(2, before + 2048, 64); LOAD(2, own + 2048, 64); }
            MULTIPLY(2, 5, 6);
            LOAD(7, row + 1024, 64);
            if (step == 0) { STORE(1, before + 1024, 64); LOAD(1, own + 1024, 64); }
            MULTIPLY(1, 4, 7);
            if (step == 0) { STORE(3, before + 3072, 64); LOAD(3, own + 3072, 64); }
            MULTIPLY(3, 5, 7);
        }
    }
}

// Panels of eight pairs and 32 steps, half of a row of weights, by row blocks whose sums wait. With sixteen of them,
// activations and sums are more than the second level holds beside a panel; what comes next of both is fetched by
// instructions, or not. Weights are read where they lie, in rows 4 KiB apart, which begin with a cache line or so many bytes
// behind that; or as tiles, which the first row block copies.
enum { IN_PLACE, COPIED, TILES };
static inline __attribute__((always_inline)) void panels(int steps, int row_blocks, int parts, int fetches, int place, int shift) {
    const int group = parts == 1 ? 16 : 32, groups = 32 / group;
    char *before = sums;
    for (int i = 0, block = 0; i < steps; block++) {
        int pair = block % 8, first = block / 8 % groups * group, row_block = block / 8 / groups % row_blocks;
        int half = block / 8 / groups / row_blocks % 2 * 32;
        char *own = sums + (row_block * 8 + pair) * 4096, *row = x + (row_block * 64 + half + first) * parts * 2048;
        char *next = first + group < 32 ? row + group * parts * 2048 : x + ((row_block + 1) % row_blocks * 64 + half) * parts * 2048;
        next += pair * group * parts * 256;
        for (int step = 0; step < group; step++, i++) {
            char *w = weights + (2 << 20) + shift + pair * 32 * 4096 + (half + first + step) * 64;
            char *tile = weights + (pair * 32 + first + step) * 2048;
            if (fetches) {
                for (int line = 0; line < 4 * parts; line++, next += 64) asm volatile("prefetcht1 (%0)" ::"r"(next));
                for (int line = 0; line < 64 / group; line++) asm volatile("prefetcht0 (%0)" ::"r"(own + 4096 + (step * 64 / group + line) * 64));
            }
            if (place == TILES || (place == COPIED && row_block > 0)) { LOAD_ONCE(4, tile, 64); LOAD_ONCE(5, tile + 1024, 64); }
            else if (shift) { WEIGHTS(w, 4096); }
            else { LOAD_ONCE(4, w, 4096); LOAD_ONCE(5, w + 16 * 4096, 4096); }
            if (place == COPIED && row_block == 0) { STORE(4, tile, 64); STORE(5, tile + 1024, 64); }
            for (int part = 0; part < parts; part++, row += 2048) {
                int switches = step == 0 && part == 0;
                LOAD(6, row, 64); LOAD(7, row + 1024, 64);
                if (switches) { STORE(0, before, 64); LOAD(0, own, 64); }
                MULTIPLY(0, 4, 6);
                if (switches) { STORE(2, before + 2048, 64); LOAD(2, own + 2048, 64); }
                MULTIPLY(2, 5, 6);
                if (switches) { STORE(1, before + 1024, 64); LOAD(1, own + 1024, 64); }
                MULTIPLY(1, 4, 7);
                if (switches) { STORE(3, before + 3072, 64); LOAD(3, own + 3072, 64); }
                MULTIPLY(3, 5, 7);
            }
        }
        before = own;
    }
}
static void sixteen_row_blocks(int steps) { panels(steps, 16, 1, 0, TILES, 0); }
static void sixteen_fetched(int steps) { panels(steps, 16, 1, 1, TILES, 0); }
static void sixteen_in_parts(int steps) { panels(steps, 16, 3, 0, TILES, 0); }
static void sixteen_in_parts_fetched(int steps) { panels(steps, 16, 3, 1, TILES, 0); }
static void four_copied(int steps) { panels(steps, 4, 1, 1, COPIED, 0); }
static void four_in_place(int steps) { panels(steps, 4, 1, 1, IN_PLACE, 0); }
static void four_copied_shifted(int steps) { panels(steps, 4, 1, 1, COPIED, 8); }
static void four_in_place_shifted(int steps) { panels(steps, 4, 1, 1, IN_PLACE, 8); }
static void eight_copied(int steps) { panels(steps, 8, 1, 1, COPIED, 0); }
static void eight_in_place(int steps) { panels(steps, 8, 1, 1, IN_PLACE, 0); }
static void sixteen_copied(int steps) { panels(steps, 16, 1, 1, COPIED, 0); }
static void sixteen_in_place(int steps) { panels(steps, 16, 1, 1, IN_PLACE, 0); }

// All 64 steps of a pair at once: activations are 128 KiB.
static void all_steps(int steps, int fetches) {
    for (int i = 0; i < steps;) {
        ZEROS;
        for (int step = 0; step < 64; step++, i++) {
            char *own = weights + i % 128 * 2048, *row = x + step * 2048;
            if (fetches) { fetch(own + 4096); fetch(row + 4096); }
            WEIGHTS(own, 64);
            TWO_BY_TWO(row);
        }
        STORE_SUMS(sums);
    }
}
static void registers_only(int steps) { all_steps(steps, 0); }
static void registers_only_fetched(int steps) { all_steps(steps, 1); }

// Weights where they lie, rows 4 KiB apart, as the first row block reads them.
static void rows_apart(int steps, int stores) {
    ZEROS;
    for (int i = 0; i < steps; i++) {
        char *panel = sums + 65536 + i % 64 * 2048;
        WEIGHTS(weights + i % 64 * 64, 4096);
        TWO_BY_TWO(x + i % 8 * 2048);
        if (stores) { STORE(4, panel, 64); STORE(5, panel + 1024, 64); }
    }
}
static void first_block(int steps) { rows_apart(steps, 0); }
static void first_block_stored(int steps) { rows_apart(steps, 1); }

// Weights of 2,048 columns from memory, by one row of activations: so many tiles of sixteen rows side by side, with so
// many parts; fetched so many lines ahead in their rows, or all of the next rows if it is -1.
enum { ROW = 4096, FROM_MEMORY = 192 << 20 };
static char *memory_weights;
static inline __attribute__((always_inline)) void one_row(int tiles, int parts, int ahead) {
    for (char *w = memory_weights; w + 2 * tiles * 16 * ROW <= memory_weights + FROM_MEMORY; w += tiles * 16 * ROW) {
        ZEROS;
        for (int step = 0; step < 64; step++) {
            for (int row = 0; row < 16 * tiles; row++) {
                if (ahead > 0) asm volatile("prefetcht0 (%0)" ::"r"(w + row * ROW + (step + ahead) * 64));
                if (ahead < 0) asm volatile("prefetcht1 (%0)" ::"r"(w + tiles * 16 * ROW + (step * 16 * tiles + row) * 64));
            }
            LOAD(4, w + step * 64, ROW);
            if (tiles > 1) LOAD(5, w + 16 * ROW + step * 64, ROW);
            if (tiles > 2) LOAD(7, w + 32 * ROW + step * 64, ROW);
            for (int part = 0; part < parts; part++) {
                LOAD(6, x + (step * parts + part) * 1024, 64);
                MULTIPLY(0, 4, 6);
                if (tiles > 1) MULTIPLY(1, 5, 6);
                if (tiles > 2) MULTIPLY(2, 7, 6);
            }
        }
        STORE(0, sums, 64); STORE(1, sums + 1024, 64); STORE(2, sums + 2048, 64);
    }
}
static void plain_read(void) {
    for (char *at = memory_weights; at < memory_weights + FROM_MEMORY; at += 64) asm volatile("vmovdqu64 (%0), %%zmm0" ::"r"(at) : "xmm0");
}
// Copies panels of 256 rows and 32 steps, half of a row each, to tiles: tile by tile, or row by row.
static inline __attribute__((always_inline)) void copy(int by_rows) {
    for (char *w = memory_weights; w + 256 * ROW <= memory_weights + FROM_MEMORY; w += 256 * ROW)
        for (int half = 0; half < 2; half++)
            for (int sixteen = 0; sixteen < 16; sixteen++)
                for (int i = 0; i < 512; i++) {
                    int row = by_rows ? i / 32 : i % 16, step = by_rows ? i % 32 : i / 16;
                    char *from = w + (sixteen * 16 + row) * ROW + half * 2048 + step * 64;
                    char *to = weights + (sixteen / 2 * 32 + step) * 2048 + sixteen % 2 * 1024 + row * 64;
                    asm volatile("vmovdqu64 (%0), %%zmm0; vmovdqu64 %%zmm0, (%1)" ::"r"(from), "r"(to) : "xmm0", "memory");
                }
}
static void copied_by_tiles(void) { copy(0); }
static void copied_by_rows(void) { copy(1); }
static void next_three(void) { one_row(3, 1, -1); }
static void next_three_parts(void) { one_row(3, 3, -1); }
static void three(void) { one_row(3, 1, 0); }
static void two(void) { one_row(2, 1, 0); }
static void two_in_parts(void) { one_row(2, 3, 0); }
static void one(void) { one_row(1, 1, 0); }
static void one_in_parts(void) { one_row(1, 3, 0); }
static void one_ahead(void) { one_row(1, 1, 3); }
static void one_in_parts_ahead(void) { one_row(1, 3, 3); }

static double seconds(void) {
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return now.tv_sec + 1e-9 * now.tv_nsec;
}
static int smaller(const void *a, const void *b) { return (*(double *)a > *(double *)b) - (*(double *)a < *(double *)b); }

static void from_memory(void) {
    const struct { const char *what; void (*run)(void); } all[] = {
        {"plain reads", plain_read},
        {"three tiles side by side, the next three fetched", next_three},
        {"the same in three parts", next_three_parts},
        {"three tiles, nothing fetched", three},
        {"two", two},
        {"two, in three parts", two_in_parts},
        {"one", one},
        {"one, in three parts", one_in_parts},
        {"one, fetched three steps ahead", one_ahead},
        {"one, in three parts, fetched three steps ahead", one_in_parts_ahead},
        {"copied to panels, tile by tile", copied_by_tiles},
        {"row by row", copied_by_rows},
    };
    enum { COUNT = sizeof all / sizeof *all, ROUNDS = 11 };
    memory_weights = aligned_alloc(2 << 20, FROM_MEMORY);
    madvise(memory_weights, FROM_MEMORY, MADV_HUGEPAGE);
    memset(memory_weights, 0x3c, FROM_MEMORY);
    double took[COUNT][ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        for (int at = 0; at < COUNT; at++) {
            double start = seconds();
            all[at].run();
            took[at][round] = seconds() - start;
        }
    }
    for (int at = 0; at < COUNT; at++) {
        qsort(took[at], ROUNDS, sizeof(double), smaller);
        printf("%6.1f GB/s at best, median %.1f  %s\n", 1e-9 * FROM_MEMORY / took[at][0], 1e-9 * FROM_MEMORY / took[at][ROUNDS / 2], all[at].what);
    }
}

int main(void) {
    const struct { const char *what; void (*run)(int); } all[] = {
        {"products alone", products},
        {"in the first-level cache, of zeros", first_level_of_zeros},
        {"in the first-level cache", first_level},
        {"three parts there", three_parts},
        {"weights from the second level", second_level},
        {"sums stored and loaded every 8 steps, groups of 4 pairs", groups_of_eight},
        {"three parts, every 4 steps", groups_of_three_parts},
        {"16 steps of activations in the first level, weights from the second", sixteen_steps},
        {"the same, weights past the first level", sixteen_steps_once},
        {"the same, sums of four pairs in turns, stored and loaded beside products", taking_turns},
        {"panels of tiles by 16 row blocks whose sums wait", sixteen_row_blocks},
        {"the same, what comes next fetched", sixteen_fetched},
        {"the same in three parts, nothing fetched", sixteen_in_parts},
        {"in three parts, what comes next fetched", sixteen_in_parts_fetched},
        {"panels copied by the first of 4 row blocks, what comes next fetched", four_copied},
        {"the same, weights where they lie, rows 4 KiB apart", four_in_place},
        {"copied by the first of 4, rows 8 bytes behind the beginning of a cache line", four_copied_shifted},
        {"where they lie, so", four_in_place_shifted},
        {"copied by the first of 8", eight_copied},
        {"where they lie", eight_in_place},
        {"copied by the first of 16", sixteen_copied},
        {"where they lie", sixteen_in_place},
        {"sums in registers, weights and activations from the second level", registers_only},
        {"the same, fetched into the first level", registers_only_fetched},
        {"first row block, rows 4 KiB apart", first_block},
        {"the same, tiles stored to the panel", first_block_stored},
    };
    enum { COUNT = sizeof all / sizeof *all, STEPS = 4096, ROUNDS = 100, BYTES = 64 << 20 };
    if (syscall(SYS_arch_prctl, 0x1023, 18)) return fputs("Linux does not permit tiles, or there are none\n", stderr), 1;
    struct { uint8_t palette, start, reserved[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } tiles = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) { tiles.row_bytes[tile] = 64; tiles.rows[tile] = 16; }
    asm volatile("ldtilecfg %0" ::"m"(tiles));
    char *memory = aligned_alloc(2 << 20, BYTES);
    madvise(memory, BYTES, MADV_HUGEPAGE);
    // Numbers between 1 and 2, or -1 and -2.
    uint64_t random = 88172645463325252;
    for (uint16_t *at = (uint16_t *)memory; at < (uint16_t *)memory + (24 << 19); at++) {
        random ^= random << 13, random ^= random >> 7, random ^= random << 17;
        *at = (random & 0x8000) | 0x3f80 | (random >> 20 & 0x7f);
    }
    memset(memory + (24 << 20), 0, BYTES - (24 << 20));
    zeros = memory + (48 << 20);
    weights = memory, x = memory + (12 << 20) + (20 << 10), sums = memory + (24 << 20) + (40 << 10);
    double best[COUNT];
    for (int at = 0; at < COUNT; at++) best[at] = 1e30;
    for (int round = 0; round < ROUNDS; round++) {
        for (int at = 0; at < COUNT; at++) {
            unsigned aux;
            all[at].run(64);
            uint64_t start = __rdtscp(&aux);
            all[at].run(STEPS);
            double took = (double)(__rdtscp(&aux) - start) / STEPS;
            if (took < best[at]) best[at] = took;
        }
    }
    for (int at = 0; at < COUNT; at++) printf("%6.1f  %s\n", 64 * best[at] / best[0], all[at].what);
    printf("a step of products alone: %.1f cycles of the clock that rdtsc reads\n", best[0]);
    from_memory();
}
