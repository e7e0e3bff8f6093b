// What steps of products in AMX tiles take, in cycles: two by two tiles of sums, 32 products of each.
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
#include <unistd.h>
#include <x86intrin.h>

#define LOAD(t, p, s) asm volatile("tileloadd (%0,%1,1), %%tmm" #t ::"r"(p), "r"((long)(s)) : "memory")
#define STORE(t, p, s) asm volatile("tilestored %%tmm" #t ", (%0,%1,1)" ::"r"(p), "r"((long)(s)) : "memory")
#define MULTIPLY(c, a, b) asm volatile("tdpbf16ps %%tmm" #b ", %%tmm" #a ", %%tmm" #c ::)
#define ZERO(t) asm volatile("tilezero %%tmm" #t ::)
#define ZEROS ZERO(0); ZERO(1); ZERO(2); ZERO(3)
#define LOAD_SUMS(s) LOAD(0, s, 64); LOAD(1, s + 1024, 64); LOAD(2, s + 2048, 64); LOAD(3, s + 3072, 64)
#define STORE_SUMS(s) STORE(0, s, 64); STORE(1, s + 1024, 64); STORE(2, s + 2048, 64); STORE(3, s + 3072, 64)
#define TWO_BY_TWO(x) \
    LOAD(6, x, 64); MULTIPLY(0, 4, 6); MULTIPLY(2, 5, 6); LOAD(7, (x) + 1024, 64); MULTIPLY(1, 4, 7); MULTIPLY(3, 5, 7)
#define WEIGHTS(w, stride) LOAD(4, w, stride); LOAD(5, (w) + 16 * (stride), stride)

static char *weights, *x, *sums;

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

int main(void) {
    const struct { const char *what; void (*run)(int); } all[] = {
        {"products alone", products},
        {"in the first-level cache", first_level},
        {"three parts there", three_parts},
        {"weights from the second level", second_level},
        {"sums stored and loaded every 8 steps, groups of 4 pairs", groups_of_eight},
        {"three parts, every 4 steps", groups_of_three_parts},
        {"sums in registers, weights and activations from the second level", registers_only},
        {"the same, fetched into the first level", registers_only_fetched},
        {"first row block, rows 4 KiB apart", first_block},
        {"the same, tiles stored to the panel", first_block_stored},
    };
    enum { COUNT = sizeof all / sizeof *all, STEPS = 4096, ROUNDS = 100, BYTES = 32 << 20 };
    if (syscall(SYS_arch_prctl, 0x1023, 18)) return fputs("Linux does not permit tiles, or there are none\n", stderr), 1;
    struct { uint8_t palette, start, reserved[14]; uint16_t row_bytes[16]; uint8_t rows[16]; } tiles = {.palette = 1};
    for (int tile = 0; tile < 8; tile++) { tiles.row_bytes[tile] = 64; tiles.rows[tile] = 16; }
    asm volatile("ldtilecfg %0" ::"m"(tiles));
    char *memory = aligned_alloc(2 << 20, BYTES);
    madvise(memory, BYTES, MADV_HUGEPAGE);
    memset(memory, 0x3c, BYTES);
    weights = memory, x = memory + (12 << 20) + (20 << 10), sums = memory + (16 << 20) + (40 << 10);
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
}
