/* What Python calls: the best level of the processor at hand, and what is not worth a level of its own. */
#include <stddef.h>
#include <stdint.h>
#define NAN __builtin_nan("")
#define INF __builtin_inf()
#ifdef _WIN32
#define EXPORT __declspec(dllexport)
int DllMainCRTStartup(void *module, unsigned why, void *reserved) { return 1; }
int _fltused;
#else
#define EXPORT __attribute__((visibility("default")))
#endif
struct how;

#ifndef HAS_LIBC /* Compilers call these unasked, for a few bytes: with them here, no C library is needed at all. */
#define OURS __attribute__((visibility("hidden")))
OURS void *memcpy(void *restrict to, const void *restrict from, size_t n)
{
    for (size_t i = 0; i < n; i++) ((char *)to)[i] = ((const char *)from)[i];
    return to;
}
OURS void *memset(void *to, int value, size_t n)
{
    for (size_t i = 0; i < n; i++) ((char *)to)[i] = (char)value;
    return to;
}
#endif

/* A hash of the sources that this was compiled from: see kernel/__init__.py. */
EXPORT const char *td_digest(void) { return DIGEST; }

#define LEVEL(L)                                                     \
    void td_scan_##L(int64_t *, const int64_t *, int64_t, double *); \
    void td_products_##L(const struct how *, const char *, const char *, int64_t, double *);
#ifdef __x86_64__
LEVEL(v1) LEVEL(v3) LEVEL(v4)
#include <cpuid.h>
EXPORT int td_best_level(void)
{
    static int known;
    unsigned a, b, c = 0, d, low, high;
    if (known) return known;
    int found = 1;
    int has_lzcnt = __get_cpuid(0x80000001, &a, &b, &c, &d) && (c >> 5 & 1);
    if (has_lzcnt && __get_cpuid(1, &a, &b, &c, &d) && (c >> 27 & 1) && (c >> 12 & 1) && (c >> 29 & 1) && (c >> 22 & 1)) {
        /* OSXSAVE, FMA, F16C, MOVBE */
        __asm__ volatile("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
        if (__get_cpuid_count(7, 0, &a, &b, &c, &d) && (low & 6) == 6 && (b >> 5 & 1) && (b >> 3 & 1) && (b >> 8 & 1)) {
            found = 3; /* AVX2, BMI1, BMI2 */
            if ((low & 0xe6) == 0xe6 && (b >> 16 & 1) && (b >> 17 & 1) && (b >> 28 & 1) && (b >> 30 & 1) && (b >> 31 & 1))
                found = 4;
        }
    }
    return known = found;
}
#define CALL(f, ...) (level == 4 ? f##_v4(__VA_ARGS__) : level == 3 ? f##_v3(__VA_ARGS__) : f##_v1(__VA_ARGS__))
#else
LEVEL(only)
EXPORT int td_best_level(void) { return 1; }
#define CALL(f, ...) ((void)level, f##_only(__VA_ARGS__))
#endif

/* The level that was asked for, but none that the processor does not have. */
static int within(int level)
{
    int best = td_best_level();
    return level < best ? level : best;
}

EXPORT void td_scan(int level, int64_t *taken, const int64_t *table, int64_t count, double *cells)
{
    level = within(level);
    CALL(td_scan, taken, table, count, cells);
}

EXPORT void td_products(int level, const struct how *how, const char *ref, const char *cand, int64_t n, double *out)
{
    level = within(level);
    CALL(td_products, how, ref, cand, n, out);
}

/* Every word once, for benchmarks: nothing that sees each byte can be quicker. */
EXPORT uint64_t td_read(const uint64_t *p, int64_t n)
{
    typedef uint64_t words __attribute__((vector_size(64), aligned(8)));
    words a = {0}, b = {0};
    int64_t i = 0;
    for (; i + 16 <= n; i += 16) a ^= *(const words *)(p + i), b ^= *(const words *)(p + i + 8);
    a ^= b;
    for (; i < n; i++) a[0] ^= p[i];
    return a[0] ^ a[1] ^ a[2] ^ a[3] ^ a[4] ^ a[5] ^ a[6] ^ a[7];
}

enum { CELLS = 49, PEAKS = 0, WHERE = 2, NAN_REF = 4, NAN_APART = 8, FIRST_NAN = 10, TOTALS = 12 };

/* Put the cells of each pair's pieces together, in order. */
EXPORT void td_join(const double *pieces, const int64_t *firsts, int64_t count, double *cells)
{
    for (int64_t k = 0; k < count; k++, cells += CELLS)
        for (int64_t i = firsts[k]; i < firsts[k + 1]; i++) {
            const double *t = pieces + i * CELLS;
            for (int w = 0; w < 2; w++) /* the first of equals stays */
                if (t[PEAKS + w] > cells[PEAKS + w]) cells[PEAKS + w] = t[PEAKS + w], cells[WHERE + w] = t[WHERE + w];
            for (int j = FIRST_NAN; j < TOTALS; j++) cells[j] = t[j] < cells[j] ? t[j] : cells[j];
            for (int j = NAN_REF; j < FIRST_NAN; j++) cells[j] += t[j];
            for (int j = TOTALS; j < CELLS; j++) cells[j] += t[j];
        }
}

/* --- the numbers of a pair from its cells: metrics.fill, which says what they are, for many ---------- */
enum { RMS = 4, REL_L2, COSINE, REF_RMS, SCALE, CANCELS, REALS, OUTSIDES = 2, APART = 7, COUNTS };

static double most(double a, double b) { return b > a ? b : a; } /* of NaN, what Python's max makes of it */
static double least(double a, double b) { return b < a ? b : a; }

static double cosine_distance(double dd, double rr, double rd, double cc, double rc)
{
    if (rr == 0 || cc == 0) return rr == cc ? 0.0 : 1.0;
    double cosine = rc / __builtin_sqrt(rr) / __builtin_sqrt(cc);
    if (cosine <= 0) return least(2.0, 1 - cosine);
    double across = dd < cc ? dd - rd * (rd / rr) : cc - rc * (rc / rr);
    return most(0.0, across) / cc / (1 + least(cosine, 1.0));
}

EXPORT void td_fill(const double *cells, const int64_t *elements, int64_t count, double *reals, int64_t *counts)
{
    for (int64_t k = 0; k < count; k++, cells += CELLS, reals += REALS, counts += COUNTS) {
        double n = (double)(elements[k] ? elements[k] : 1), max_abs = cells[PEAKS], max_rel = cells[PEAKS + 1];
        double at_abs = cells[WHERE], at_rel = cells[WHERE + 1];
        double total = cells[TOTALS], dd = cells[TOTALS + 1], rr = cells[TOTALS + 2], rd = cells[TOTALS + 3];
        double cc = most(0.0, rr + 2 * rd + dd), rc = rr + rd;
        int cancels = dd > 0 && rr > 0 && (dd - rd * (rd / rr) < 1e-3 * dd || cc < 1e-3 * most(rr, dd));
        int has_nan = cells[NAN_APART] > 0, is_apart = has_nan || cells[NAN_APART + 1] > 0;
        if (is_apart) {
            max_rel = total = dd = max_abs = has_nan ? NAN : INF;
            at_rel = at_abs = cells[FIRST_NAN + !has_nan];
            cancels = 0;
        }
        reals[0] = max_abs, reals[1] = max_rel, reals[2] = total / n, reals[3] = dd / n;
        reals[RMS] = __builtin_sqrt(dd / n), reals[REF_RMS] = __builtin_sqrt(rr / n), reals[CANCELS] = cancels;
        reals[REL_L2] = rr != 0 ? __builtin_sqrt(dd) / __builtin_sqrt(rr) : dd == 0 ? 0.0 : dd * INF;
        reals[COSINE] = cosine_distance(dd, rr, rd, cc, rc);
        reals[SCALE] = rr != 0 ? rc / rr : NAN;
        if (is_apart) reals[REL_L2] = max_abs, reals[COSINE] = reals[SCALE] = NAN;
        counts[0] = (int64_t)at_abs, counts[1] = (int64_t)at_rel, counts[OUTSIDES] = (int64_t)cells[TOTALS + 4];
        for (int j = 0; j < 4; j++) counts[3 + j] = (int64_t)cells[NAN_REF + j];
        counts[APART] = (int64_t)(cells[NAN_APART] + cells[NAN_APART + 1]);
    }
}
