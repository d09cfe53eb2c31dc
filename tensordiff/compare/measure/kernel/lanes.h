/* One block in lanes of REAL. Included once for float and once for double. */
#define LANES (VECTOR / (int)sizeof(REAL))
#define IN_ALL (ABREAST / (int)sizeof(REAL))
#define V NAME(vec)
#define VI NAME(ints)
#define VU NAME(uints)
#define W HALF(vec)
#define WI HALF(ints)
#define WU HALF(uints)
#define MAX_OF(T, I, a, b) ((T)(((I)(a) & (I)((a) > (b))) | ((I)(b) & ~(I)((a) > (b)))))
#define MAX(a, b) MAX_OF(V, VI, a, b)
#define MIN_OF(I, a, b) (((a) & (I)((a) < (b))) | ((b) & ~(I)((a) < (b))))
#define ABS(x) ((V)((VU)(x) & ~(VU)(-(V){0})))

#ifdef __AVX2__
#define COUNTS_SIGNS (sizeof(REAL) == 4)
#else
#define COUNTS_SIGNS 0
#endif
#ifdef __AVX512DQ__
#define HAS_RANGE (sizeof(REAL) == 4)
#else
#define HAS_RANGE 0
#endif

/* |r|, or the guard where that is larger: one operation where the processor has it. */
static ALWAYS V NAME(guarded)(V r, V guard)
{
#ifdef __AVX512DQ__
    typedef float sixteen __attribute__((vector_size(64)));
    enum { LARGER_SIZE = 3, WITHOUT_SIGN = 2 << 2, ALL = 0xffff, ROUNDED_AS_EVER = 4 };
    if (sizeof(REAL) == 4)
        return (V)__builtin_ia32_rangeps512_mask((sixteen)r, (sixteen)guard, LARGER_SIZE | WITHOUT_SIGN, (sixteen)r, ALL,
                                                 ROUNDED_AS_EVER);
#endif
    return MAX(ABS(r), guard);
}

/* ``atol`` and ``rtol`` are slightly below the user's; ``bar`` is the largest relative error so far. */
struct NAME(bounds) { V atol, rtol, sure_atol, sure_rtol, bar, guard; };
struct NAME(lanes) { V sum_abs, dd, rr, rd, largest; VI above, outside; VU nearest; int inside; };

/* A vector of the reference, and how much the candidate is above it. ``takes_guard``: the tolerance may take the guard
 * for smaller numbers, too, which saves an operation. */
static ALWAYS void NAME(step)(struct NAME(lanes) *a, V r, V d, const struct NAME(bounds) *b, int takes_guard)
{
    V error = ABS(d), guarded = NAME(guarded)(r, b->guard), size = takes_guard ? guarded : ABS(r);
    V allowed = b->atol + b->rtol * size;
    a->sum_abs += error;
    a->dd += d * d;
    a->rr += r * r;
    a->rd += r * d;
    a->largest = MAX(error, a->largest); /* a NaN is not larger than anything */
    a->above |= (VI)(b->bar * guarded - error); /* a sign stays where one is above the bar */
    if (sizeof(REAL) == 4) { /* how far above, in steps of the type: the least */
        VU steps = (VU)error - (VU)allowed;
        a->nearest = MIN_OF(VU, steps, a->nearest);
#if VECTOR == 64 /* the signs in one operation of a vector, and counted beside the vectors, which are what is scarce */
        typedef int sixteen __attribute__((vector_size(64)));
        a->inside += __builtin_popcount((unsigned)(uint16_t)__builtin_ia32_cvtd2mask512((sixteen)steps));
#elif defined(__AVX2__)
        typedef float eight __attribute__((vector_size(32)));
        a->inside += __builtin_popcount((unsigned)__builtin_ia32_movmskps256((eight)steps));
#else
        a->outside += 1 - (VI)(steps >> 31);
#endif
    } else { /* how many are surely above: few processors have a minimum of 64 bits */
        a->outside -= (VI)(error >= allowed);
        a->nearest -= (VU)(error >= b->sure_atol + b->sure_rtol * size);
    }
}

/* Of n elements those that a part has; so many may be read. Lanes that are left over are zeros on both sides, which add
 * nothing. */
static ALWAYS void NAME(walk)(int part, int kr, int kc, const char *ref, const char *cand, int n, int64_t readable,
                              struct NAME(lanes) *a, const struct NAME(bounds) *b, int takes_guard)
{
    const int sr = bytes_in_lanes(kr, sizeof(REAL)), sc = bytes_in_lanes(kc, sizeof(REAL));
    int i = 0;
    if (kr == BF16 && kc == BF16) /* Even elements by a shift, odd ones by a mask: one load of each side for both. */
        for (; i + 2 * IN_ALL <= n; i += 2 * IN_ALL) {
            VU r, c;
            __builtin_memcpy(&r, ref + i * 2 + part * VECTOR, sizeof r);
            __builtin_memcpy(&c, cand + i * 2 + part * VECTOR, sizeof c);
            V even = (V)(r << 16), odd = (V)(r & 0xffff0000u);
            NAME(step)(a, even, (V)(c << 16) - even, b, takes_guard);
            NAME(step)(a, odd, (V)(c & 0xffff0000u) - odd, b, takes_guard);
        }
    for (; i + IN_ALL <= n; i += IN_ALL) {
        const int at = i + part * LANES;
        V r = NAME(load)(kr, ref + at * sr);
        NAME(step)(a, r, NAME(load)(kc, cand + at * sc) - r, b, takes_guard);
    }
    if (i < n) {
        char last[2][VECTOR] = {{0}};
        const int at = i + part * LANES, left = n - at < 0 ? 0 : n - at < LANES ? n - at : LANES;
        ref += at * sr, cand += at * sc;
        if (at + LANES > readable) {
            __builtin_memcpy(last[0], ref, (size_t)(left * sr));
            __builtin_memcpy(last[1], cand, (size_t)(left * sc));
            ref = last[0], cand = last[1];
        }
        VI keep;
        for (int k = 0; k < LANES; k++) keep[k] = -(INT)(k < left);
        V r = (V)((VI)NAME(load)(kr, ref) & keep);
        NAME(step)(a, r, (V)((VI)NAME(load)(kc, cand) & keep) - r, b, takes_guard);
    }
}

#ifdef HAS_FLOAT8
#include "float8.h"
#endif

#ifdef HAS_LONG
/* A block with integers that float64 does not hold: their differences, each rounded once. */
static __attribute__((noinline)) void walk_long(const struct how *how, struct part p, int64_t start, int n,
                                                struct lanes_d *a, const struct bounds_d *b)
{
    struct wide w;
    widen(how, p, start, n, &w);
    for (int i = n; i % IN_ALL; i++) w.r[i] = w.d[i] = 0;
    for (int part = 0; part < PARTS; part++)
        for (int i = part * LANES; i < n; i += IN_ALL)
            step_d(a + part, load_d(COPIED, (char *)(w.r + i)), load_d(COPIED, (char *)(w.d + i)), b, 0);
}
#endif

/* The upper half of the lanes added to the lower. */
struct NAME(joined) { W sum_abs, dd, rr, rd, largest; WI above, outside; WU nearest; int inside; };
static ALWAYS struct NAME(joined) NAME(join)(const struct NAME(lanes) *a)
{
#if VECTOR == 64
#define HALVES(T, field) T field[2]; __builtin_memcpy(field, &a->field, sizeof field);
    const int inside = a->inside;
#else
#define HALVES(T, field) const T field[2] = {a[0].field, a[1].field};
    const int inside = a[0].inside + a[1].inside;
#endif
    HALVES(W, sum_abs) HALVES(W, dd) HALVES(W, rr) HALVES(W, rd) HALVES(W, largest)
    HALVES(WI, above) HALVES(WI, outside) HALVES(WU, nearest)
    return (struct NAME(joined)){
        .sum_abs = sum_abs[0] + sum_abs[1], .dd = dd[0] + dd[1], .rr = rr[0] + rr[1], .rd = rd[0] + rd[1],
        .largest = MAX_OF(W, WI, largest[0], largest[1]), .above = above[0] | above[1],
        .outside = outside[0] + outside[1], .nearest = sizeof(REAL) == 4 ? MIN_OF(WU, nearest[0], nearest[1]) : nearest[0] + nearest[1], .inside = inside};
}

/* The lanes of four sums together: {|d|, dd, rr, rd} in float64. */
static ALWAYS quad NAME(fold)(const struct NAME(joined) *a)
{
    enum { LEFT = (int)(sizeof(W) / sizeof(REAL)) };
    REAL s[4][LEFT];
    quad out;
    __builtin_memcpy(s, a, sizeof s);
#define HALVE(w) if (LEFT > w) for (int k = 0; k < 4; k++) for (int i = 0; i < w; i++) s[k][i] += s[k][i + w]
    HALVE(4);
    HALVE(2);
    HALVE(1);
    for (int k = 0; k < 4; k++) out[k] = (double)s[k][0];
    return out;
}

#define ANY(mask) NAME(is_any)((WI)(mask))
static ALWAYS int NAME(is_any)(WI mask)
{
#ifdef __clang__
    return __builtin_reduce_or(mask) != 0;
#else
    INT seen = 0;
    for (unsigned i = 0; i < sizeof mask / sizeof mask[0]; i++) seen |= mask[i];
    return seen != 0;
#endif
}

/* A float64 in the lanes' type; infinite in it, no later error would be above it. */
static ALWAYS REAL NAME(at_most)(double x) { return x < (double)MOST ? (REAL)x : MOST; }

/* Elements first to last of a piece, all in one bucket, into the sums. */
static ALWAYS void NAME(bucket)(int kr, int kc, const struct how *how, struct part p, int64_t first, int64_t last,
                                double *cells, quad *total, double *outside)
{
    struct NAME(bounds) b = {
        .atol = (V){0} + (REAL)how->under[0], .rtol = (V){0} + (REAL)how->under[1], .guard = (V){0} + (REAL)REL_GUARD,
        .sure_atol = (V){0} + (REAL)(how->under[0] * SURELY), .sure_rtol = (V){0} + (REAL)(how->under[1] * SURELY)};
    /* Whole numbers are not rounded: those that are equal in lanes are equal. */
    const int splits_ties = how->splits_ties && !(is_whole(how->kinds[0]) && is_whole(how->kinds[1]));
    /* Where rtol * guard is less than half of what ``under`` is below the user's atol, what is inside stays inside. */
    const int takes_guard = HAS_RANGE && how->under[1] * REL_GUARD < how->under[0] * 5e-7;
    const double band = how->splits_ties ? 1 - BAND : 1 + BAND;
    const W vanishing = (W){0} + NAME(at_most)(how->vanishing);
    REAL peak = NAME(at_most)(cells[PEAKS]);
    b.bar = (V){0} + NAME(at_most)(cells[PEAKS + 1] * band);
    WI counted = {0};
    int blocks_apart = 0; /* see float8.h */
    for (int64_t start = first; start < last; start += BLOCK) {
        int n = (int)(last - start < BLOCK ? last - start : BLOCK), is_odd_block = 0;
        const char *ref = p.ref + start * how->bytes[0], *cand = p.cand + start * how->bytes[1];
        int64_t readable = p.elements - start;
        REAL copies[2][BLOCK];
        if (kr == COPIED) {
            is_odd_block |= NAME(copy)(how->kinds[0], how->tables[0], ref, n, copies[0]);
            is_odd_block |= NAME(copy)(how->kinds[1], how->tables[1], cand, n, copies[1]);
            ref = (const char *)copies[0], cand = (const char *)copies[1];
            readable = n;
        }
        if (kr == I32 && (has_large(ref, n) | has_large(cand, n))) {
            block_d(how, p, start, start + n, cells, total, outside);
            peak = NAME(at_most)(cells[PEAKS]);
            b.bar = (V){0} + NAME(at_most)(cells[PEAKS + 1] * band);
            continue;
        }
        struct NAME(lanes) lanes[PARTS];
        for (int part = 0; part < PARTS; part++) lanes[part] = (struct NAME(lanes)){.nearest = (VU){0} - (sizeof(REAL) == 4)};
#ifdef HAS_FLOAT8
        if (is_float8(kr)) is_odd_block = walk_float8(kr, ref, cand, n, readable, lanes, &b, &blocks_apart);
        else
#endif
#ifdef HAS_LONG
        if (is_odd_block) walk_long(how, p, start, n, lanes, &b), is_odd_block = 0;
        else
#endif
        for (int part = 0; part < PARTS; part++)
            if (takes_guard) NAME(walk)(part, kr, kc, ref, cand, n, readable, lanes + part, &b, 1);
            else NAME(walk)(part, kr, kc, ref, cand, n, readable, lanes + part, &b, 0);
        (void)blocks_apart;
        struct NAME(joined) a = NAME(join)(lanes);
        /* Not finite, or so large that the lanes together are not, or so near the tolerance that rounding decides. */
        WI beyond = ~(WI)(a.dd < (REAL)LARGEST) | ~(WI)(a.rr < (REAL)LARGEST);
        beyond |= sizeof(REAL) == 4 ? (WI)(a.nearest < NEAR) : (WI)(a.nearest != (WU)a.outside);
        int is_carried = !is_odd_block && !ANY(beyond) && (ANY(a.dd >= vanishing) || !ANY(a.largest > 0))
            && (ANY(a.rr >= vanishing) || is_all_zero(how, p, start, n));
        /* Rounding keeps order: an error larger than the peak never rounds to less than the peak does. */
        WI ties = splits_ties ? (WI)(a.largest == peak) & (WI)(a.largest > 0) : (WI){0};
        if (LIKELY(is_carried)) {
            *total += NAME(fold)(&a);
            counted += a.outside;
            if (COUNTS_SIGNS) *outside += (n + IN_ALL - 1) / IN_ALL * IN_ALL - a.inside;
            if (LIKELY(!ANY((WI)(a.largest > peak) | (WI)(a.above < 0) | ties))) continue;
        }
        exact_block(how, p, start, n, !is_carried, cells, total, outside);
        peak = NAME(at_most)(cells[PEAKS]);
        b.bar = (V){0} + NAME(at_most)(cells[PEAKS + 1] * band);
    }
    for (unsigned i = 0; i < sizeof counted / sizeof counted[0]; i++) *outside += (double)counted[i];
}
#undef V
#undef VI
#undef VU
#undef W
#undef WI
#undef WU
#undef MAX_OF
#undef MIN_OF
#undef MAX
#undef HALVES
#undef ABS
#undef ANY
#undef COUNTS_SIGNS
#undef HAS_RANGE
#undef LANES
#undef IN_ALL
#undef HALVE
#undef REAL
#undef INT
#undef NAME
#undef HALF
#undef MOST
#undef LARGEST
#undef HAS_FLOAT8
#undef HAS_LONG
