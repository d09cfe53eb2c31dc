/* Every number of a pair in one read of each tensor: lanes.h has a block that lanes carry, float8.h one of small
 * floats, bytes.h one of small integers, elements.h the types, and here is what lanes cannot carry, in float64. Cells are those of diff.py.
 * No C library and no Python: compiled once for each level of the processor (LEVEL), between which library.c chooses. */
#include <stddef.h>
#include <stdint.h>

#define ALWAYS inline __attribute__((always_inline))
#define RARE __attribute__((noinline, cold))
#define LIKELY(x) __builtin_expect(!!(x), 1)
#ifndef VECTOR /* bytes that the processor works on at a time */
#ifdef __AVX512DQ__
#define VECTOR 64
#else
#define VECTOR 32
#endif
#endif
#define JOIN_(a, b) a##_##b
#define JOIN(a, b) JOIN_(a, b)

enum { BLOCK = 512, BUCKETS = 32 }; /* 512 elements are 32 additions a lane: no sum is off by more than 1e-6 */
enum { PART = 64 }; /* of a block, where a largest error is searched: few parts hold one, and divisions are slow */
#define BAND 4e-6 /* wider than any float32 rounding between a block's estimate and the exact value */
#define NEAR 256 /* steps of float32 by which an element is clearly outside */
#define SURELY (1 + 0x1p-40)
#define REL_GUARD 1e-10
#define INF __builtin_inf()
enum { PEAKS, WHERE = 2, NAN_REF = 4, NAN_CAND, INF_REF, INF_CAND, NAN_APART, INF_APART, FIRST_NAN, FIRST_INF,
       TOTALS = 12, SQUARES = 17, CELLS = SQUARES + BUCKETS };

/* Sums have 16 lanes of float32, or 8 of float64, on every machine: those of one vector, or of two that take their
 * halves of a block one after the other. So they do not depend on the machine but for fused multiplications. */
enum { ABREAST = 64, PARTS = ABREAST / VECTOR };

typedef double quad __attribute__((vector_size(32)));

struct how {
    int32_t kinds[2], bytes[2];
    const float *tables[2]; /* the values of all 256 elements of a one-byte type */
    double tolerance[2], under[2]; /* what the user gave, and slightly below it */
    double vanishing; /* squares that sum up to less are not trusted to the lanes */
    int64_t splits_ties; /* whether errors that are equal to float32 rounding are told apart */
};
struct part { const char *ref, *cand; int64_t elements, offset, whole; };

#include "elements.h"

/* --- blocks that lanes cannot carry, and where the largest errors stand: in float64 ------------ */
struct wide { double r[BLOCK], c[BLOCK], d[BLOCK], rel[BLOCK]; };
static ALWAYS int is_odd(double x) { return !(x - x == 0); }
static ALWAYS double size_of(double x) { return __builtin_fabs(x); }
static ALWAYS int64_t bits_of(double x) { union { double d; int64_t i; } v = {.d = x}; return v.i; }

/* The upper and lower half of whole numbers, each exact as a double. */
static void halves(int kind, const double *x, const char *p, int n, double *high, double *low)
{
    for (int i = 0; i < n; i++) {
        uint64_t u;
        if (is_long(kind)) __builtin_memcpy(&u, p + i * 8, 8);
        else u = (uint64_t)(int64_t)x[i];
        high[i] = kind == U64 ? (double)(u >> 32) : (double)((int64_t)u >> 32), low[i] = (double)(uint32_t)u;
    }
}

/* Differences of whole numbers of 64 bits, of both sides the same kind. Whether all are within 63 bits. */
static int subtract_long(int kind, const char *ref, const char *cand, int n, double *d)
{
    const uint64_t top = kind == U64 ? 0 : 1ull << 63; /* turned round, signed numbers are ordered as unsigned ones */
    uint64_t beyond = 0;
    for (int i = 0; i < n; i++) {
        uint64_t r, c;
        __builtin_memcpy(&r, ref + i * 8, 8);
        __builtin_memcpy(&c, cand + i * 8, 8);
        int64_t by = (int64_t)(c - r);
        beyond |= (uint64_t)((c ^ top) < (r ^ top)) ^ (uint64_t)(by < 0);
        d[i] = (double)by;
    }
    return !beyond;
}

/* Both sides and their difference, which is rounded once, even of integers that float64 does not hold. */
static void widen(const struct how *how, struct part p, int64_t start, int n, struct wide *w)
{
    const char *ref = p.ref + start * how->bytes[0], *cand = p.cand + start * how->bytes[1];
    int kr = how->kinds[0], kc = how->kinds[1];
    int is_rounded = copy_d(kr, how->tables[0], ref, n, w->r) | copy_d(kc, how->tables[1], cand, n, w->c);
    for (int i = 0; i < n; i++) w->d[i] = w->c[i] - w->r[i];
    if (!is_rounded || (kr == kc && is_long(kr) && subtract_long(kr, ref, cand, n, w->d))) return;
    double hr[BLOCK], lr[BLOCK], hc[BLOCK], lc[BLOCK];
    int are_whole = is_whole(kr) && is_whole(kc);
    if (are_whole || is_long(kr)) halves(kr, w->r, ref, n, hr, lr);
    if (are_whole || is_long(kc)) halves(kc, w->c, cand, n, hc, lc);
    for (int i = 0; i < n; i++) {
        /* Where values are near each other the first step is exact; where they are not, the rest is below rounding. */
        if (are_whole) w->d[i] = (hc[i] - hr[i]) * 0x1p32 + (lc[i] - lr[i]);
        else if (is_long(kc)) w->d[i] += (hc[i] * 0x1p32 - w->c[i]) + lc[i];
        else w->d[i] -= (hr[i] * 0x1p32 - w->r[i]) + lr[i];
    }
}

static RARE int is_all_zero(const struct how *how, struct part p, int64_t start, int n)
{
    double x[BLOCK];
    int seen = 0;
    copy_d(how->kinds[0], how->tables[0], p.ref + start * how->bytes[0], n, x);
    for (int i = 0; i < n; i++) seen |= x[i] != 0;
    return !seen;
}

/* Count a place where one side is not finite; whether the other is not the same. */
static int tell_odd(double r, double c, int64_t place, double *cells)
{
    int nan_r = r != r, nan_c = c != c, kind = !(nan_r || nan_c);
    cells[NAN_REF] += nan_r, cells[NAN_CAND] += nan_c;
    cells[INF_REF] += size_of(r) == INF, cells[INF_CAND] += size_of(c) == INF;
    if (r == c || (nan_r && nan_c)) return 0;
    cells[NAN_APART + kind] += 1;
    if ((double)place < cells[FIRST_NAN + kind]) cells[FIRST_NAN + kind] = (double)place;
    return 1;
}

static void exact_sums(const struct how *how, const struct wide *w, int64_t place, int n, double *cells, quad *total,
                       double *outside)
{
    quad sums = *total; /* in a register: to add to memory takes five times as long */
    for (int i = 0; i < n; i++) {
        double r = w->r[i], c = w->c[i], d = w->d[i];
        if (is_odd(r) || is_odd(c)) {
            if (!is_odd(r)) sums += (quad){0, 0, r * r, 0};
            *outside += tell_odd(r, c, place + i, cells);
            continue;
        }
        sums += (quad){size_of(d), d * d, r * r, r * d};
        *outside += size_of(d) > how->tolerance[0] + how->tolerance[1] * size_of(r);
    }
    *total = sums;
}

/* Whether any error of a block is larger than those before it. */
static int beats(const struct wide *w, int n, const double *cells)
{
    double peak = cells[PEAKS], bar = cells[PEAKS + 1] * (1 - 1e-15);
    int found = 0;
    for (int i = 0; i < n; i++) {
        double e = size_of(w->d[i]), s = size_of(w->r[i]);
        found |= (e > peak) | (e > bar * (s > REL_GUARD ? s : REL_GUARD));
    }
    return found;
}

/* Take the largest finite errors of a block; the first of equals stays. */
static void exact_peaks(struct wide *w, int64_t place, int n, double *cells)
{
    int64_t most[2] = {0, 0};
    for (int i = 0; i < n; i++) {
        double e = size_of(w->d[i]), s = size_of(w->r[i]);
        e = e < INF ? e : 0;
        double rel = e / (s > REL_GUARD ? s : REL_GUARD);
        w->d[i] = e, w->rel[i] = rel;
        most[0] = bits_of(e) > most[0] ? bits_of(e) : most[0];
        most[1] = bits_of(rel) > most[1] ? bits_of(rel) : most[1];
    }
    for (int which = 0; which < 2; which++) {
        const double *of = which ? w->rel : w->d;
        union { int64_t i; double d; } peak = {.i = most[which]};
        if (!(peak.d > cells[PEAKS + which])) continue;
        int i = 0;
        while (of[i] != peak.d) i++;
        cells[PEAKS + which] = peak.d, cells[WHERE + which] = (double)(place + i);
    }
}

static RARE void exact_block(const struct how *how, struct part p, int64_t start, int n, int has_no_sums, double *cells,
                             quad *total, double *outside)
{
    struct wide w;
    for (int i = 0; i < n; i += PART) {
        int some = n - i < PART ? n - i : PART;
        widen(how, p, start + i, some, &w);
        if (has_no_sums) exact_sums(how, &w, p.offset + start + i, some, cells, total, outside);
        if (beats(&w, some, cells)) exact_peaks(&w, p.offset + start + i, some, cells);
    }
}

/* --- lanes ------------------------------------------------------------------------------------ */
static void block_d(const struct how *how, struct part p, int64_t first, int64_t last, double *cells, quad *total,
                    double *outside);
#define REAL float
#define INT int32_t
#define NAME(x) x##_f
#define HALF(x) x##_f8
#define MOST 0x1.fffffep127f
#define LARGEST 0x1p120f
#define HAS_FLOAT8
#include "lanes.h"
#define REAL double
#define INT int64_t
#define NAME(x) x##_d
#define HALF(x) x##_d4
#define MOST 0x1.fffffffffffffp1023
#define LARGEST 0x1p1016
#define HAS_LONG
#include "lanes.h"

#include "bytes.h"

/* A block of integers that lanes of float32 do not hold. */
static __attribute__((noinline)) void block_d(const struct how *how, struct part p, int64_t first, int64_t last,
                                              double *cells, quad *total, double *outside)
{
    bucket_d(COPIED, COPIED, how, p, first, last, cells, total, outside);
}

/* A piece, bucket by bucket. */
enum lanes { FLOATS, DOUBLES, BYTES };
static ALWAYS void piece_in(enum lanes lanes, int kr, int kc, const struct how *how, struct part p, double *cells)
{
    quad all = {0};
    double outside = 0;
    int64_t buckets = p.whole < BUCKETS ? p.whole : BUCKETS, k = p.offset * buckets / (p.whole ? p.whole : 1);
    for (; k < buckets; k++) {
        int64_t first = k * p.whole / buckets - p.offset, last = (k + 1) * p.whole / buckets - p.offset;
        first = first > 0 ? first : 0, last = last < p.elements ? last : p.elements;
        if (first >= p.elements) break;
        if (first >= last) continue;
        quad total = {0};
        if (lanes == FLOATS) bucket_f(kr, kc, how, p, first, last, cells, &total, &outside);
        else if (lanes == DOUBLES) bucket_d(kr, kc, how, p, first, last, cells, &total, &outside);
        else bucket_bytes(kr, how, p, first, last, cells, &total, &outside);
        cells[SQUARES + k] += total[1];
        all += total;
    }
    for (int i = 0; i < 4; i++) cells[TOTALS + i] += all[i];
    cells[TOTALS + 4] += outside;
}

/* Types that are read where they lie; all others are copied, block by block. The first need equal whole numbers. */
#define WHOLE(X) X(I8, I8, BYTES) X(U8, U8, BYTES) X(BOOL, BOOL, BYTES) X(I32, I32, FLOATS)
#define IN_PLACE(X) X(F32, F32, FLOATS) X(BF16, BF16, FLOATS) X(F16, F16, FLOATS) X(F32, BF16, FLOATS) \
    X(BF16, F32, FLOATS) X(F32, F16, FLOATS) X(F16, F32, FLOATS) X(E4M3FN, E4M3FN, FLOATS) X(E5M2, E5M2, FLOATS) \
    X(E4M3FNUZ, E4M3FNUZ, FLOATS) X(E5M2FNUZ, E5M2FNUZ, FLOATS) \
    X(I16, I16, FLOATS) X(F64, F64, DOUBLES)
#define APART static __attribute__((noinline)) void
#define X(R, C, L) APART R##_##C(const struct how *how, struct part p, double *cells) { piece_in(L, R, C, how, p, cells); }
WHOLE(X)
IN_PLACE(X)
#undef X
APART any_f(const struct how *how, struct part p, double *cells) { piece_in(FLOATS, COPIED, COPIED, how, p, cells); }
APART any_d(const struct how *how, struct part p, double *cells) { piece_in(DOUBLES, COPIED, COPIED, how, p, cells); }

static void piece(const struct how *how, struct part p, double *cells)
{
    int kr = how->kinds[0], kc = how->kinds[1], must_equal = how->under[0] == 0.5 && how->under[1] == 0;
#define X(R, C, L) if (kr == R && kc == C) return R##_##C(how, p, cells);
    if (must_equal) { WHOLE(X) }
    IN_PLACE(X)
#undef X
    if (fits_float(kr) && fits_float(kc)) return any_f(how, p, cells);
    any_d(how, p, cells);
}

/* --- what is called ----------------------------------------------------------------------------- */

/* Rounding as it is by default: another library may have left this thread flushing small numbers to zero. */
static ALWAYS uint64_t usual_rounding(void)
{
#if defined(__x86_64__)
    unsigned before = __builtin_ia32_stmxcsr();
    __builtin_ia32_ldmxcsr(0x1f80);
    return before;
#elif defined(__aarch64__)
    uint64_t before;
    __asm__ volatile("mrs %0, fpcr" : "=r"(before));
    __asm__ volatile("msr fpcr, %0" : : "r"((uint64_t)0));
    return before;
#else
    return 0;
#endif
}

static ALWAYS void restore_rounding(uint64_t before)
{
#if defined(__x86_64__)
    __builtin_ia32_ldmxcsr((unsigned)before);
#elif defined(__aarch64__)
    __asm__ volatile("msr fpcr, %0" : : "r"(before));
#else
    (void)before;
#endif
}

/* Pieces of a table (how, ref, cand, elements, offset, whole, row) that no other thread has taken, until none is left. */
void JOIN(td_scan, LEVEL)(int64_t *taken, const int64_t *table, int64_t count, double *cells)
{
    uint64_t before = usual_rounding();
    for (;;) {
        int64_t k = __atomic_fetch_add(taken, 1, __ATOMIC_RELAXED);
        if (k >= count) break;
        const int64_t *t = table + 7 * k;
        struct part p = {(const char *)t[1], (const char *)t[2], t[3], t[4], t[5]};
        piece((const struct how *)t[0], p, cells + t[6] * CELLS);
    }
    restore_rounding(before);
}

/* Inner products (dd, rr, rd, cc, rc) of the finite places, in float64 throughout. */
void JOIN(td_products, LEVEL)(const struct how *how, const char *ref, const char *cand, int64_t elements, double *out)
{
    enum { LANES = 4 };
    uint64_t before = usual_rounding();
    struct wide w;
    struct part p = {ref, cand, elements, 0, elements};
    vec_d4 s[5] = {{0}};
    for (int64_t start = 0; start < elements; start += BLOCK) {
        int n = (int)(elements - start < BLOCK ? elements - start : BLOCK);
        widen(how, p, start, n, &w);
        for (int i = n; i % LANES; i++) w.r[i] = w.c[i] = w.d[i] = 0;
        for (int i = 0; i < n; i += LANES) {
            vec_d4 r, c, d;
            __builtin_memcpy(&r, w.r + i, sizeof r);
            __builtin_memcpy(&c, w.c + i, sizeof c);
            __builtin_memcpy(&d, w.d + i, sizeof d);
            ints_d4 keep = (ints_d4)(d - d == 0);
            r = (vec_d4)((ints_d4)r & keep), c = (vec_d4)((ints_d4)c & keep), d = (vec_d4)((ints_d4)d & keep);
            s[0] += d * d, s[1] += r * r, s[2] += r * d, s[3] += c * c, s[4] += r * c;
        }
    }
    for (int k = 0; k < 5; k++)
        for (int i = 0; i < LANES; i++) out[k] += s[k][i];
    restore_rounding(before);
}
