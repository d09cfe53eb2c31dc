/* A block of float8, of both sides the same kind. An element that is equal on both sides adds to nothing but the
 * reference's squares, and where two runs agree most are: squares are summed up first, 64 elements at a time, and only
 * the groups of 16 that differ are taken step by step. Where nearly all differ, the blocks after it go the plain way,
 * which takes every group. Which way a block goes depends on nothing but the elements of its bucket. */

typedef uint8_t octets __attribute__((vector_size(VECTOR)));
typedef uint16_t halfs __attribute__((vector_size(VECTOR)));
typedef int64_t longs __attribute__((vector_size(VECTOR)));
enum { EIGHT = 8, IN_GROUP = 2 * EIGHT, AT_A_TIME = 64, BLOCKS_APART = 15 };

/* Lanes hold e4m3 over 2^8, as float16 does, and its kin by their bias: bounds are over it as well, and sums are put
 * right, all without rounding. The largest of e5m2fnuz are infinite in float16: their blocks go to float64. */
#define SCALE(kind) ((kind) == E4M3FN ? 0x1p8f : (kind) == E4M3FNUZ ? 0x1p7f : (kind) == E5M2FNUZ ? 0.5f : 1.0f)

/* The squares of a vector of float16, into two sums. */
static ALWAYS void add_squares(vec_f *sums, halfs numbers)
{
    shorts halves[2];
    __builtin_memcpy(halves, &numbers, sizeof numbers);
    for (int k = 0; k < 2; k++) {
        vec_f v = half_f(halves[k]);
        sums[k] += v * v;
    }
}

/* Which eights of a vector's elements differ, a bit for each. */
static ALWAYS uint64_t eights_apart(octets r, octets c)
{
    longs same = (longs)((longs)r == (longs)c);
#if VECTOR == 64
    typedef long long eight __attribute__((vector_size(64)));
    return (uint8_t)~__builtin_ia32_cvtq2mask512((eight)same);
#elif defined(__AVX2__)
    typedef double four __attribute__((vector_size(32)));
    return 15 ^ (unsigned)__builtin_ia32_movmskpd256((four)same);
#else
    uint64_t apart = 0;
    for (int i = 0; i < VECTOR / 8; i++) apart |= (uint64_t)(same[i] == 0) << i;
    return apart;
#endif
}

/* Where a kind is NaN, which lanes would load as a number: of e5m2 they do not. */
static ALWAYS octets is_nan8(int kind, octets x)
{
    return kind == E5M2 ? (octets){0} : kind == E4M3FN ? (octets)((x & 0x7f) == 0x7f) : (octets)(x == 0x80);
}
static ALWAYS int any8(octets mask)
{
    longs g = (longs)mask;
    int64_t seen = 0;
    for (int i = 0; i < VECTOR / 8; i++) seen |= g[i];
    return seen != 0;
}

struct float8_sums { vec_f rr[4]; octets odd; uint64_t apart; };

/* 64 elements, the first of them at i: even ones, then odd ones. Squares do not ask for signs. */
static ALWAYS void float8_squares(int kind, struct float8_sums *sums, const char *ref, const char *cand, int i)
{
    for (int k = 0; k < PARTS; k++) {
        struct float8_sums *a = sums + k;
        octets r, c;
        __builtin_memcpy(&r, ref + k * VECTOR, sizeof r);
        __builtin_memcpy(&c, cand + k * VECTOR, sizeof c);
        a->apart |= eights_apart(r, c) << (i + k * VECTOR) / EIGHT;
        a->odd |= is_nan8(kind, r) | is_nan8(kind, c);
        if (kind == E4M3FN || kind == E4M3FNUZ) {
            add_squares(a->rr, (halfs)r << 7 & 0x3f80);
            add_squares(a->rr + 2, (halfs)r >> 1 & 0x3f80);
        } else {
            add_squares(a->rr, (halfs)r << 8);
            add_squares(a->rr + 2, (halfs)r & 0xff00);
        }
    }
}

/* Group by group of those that differ. Whether it holds an element that lanes do not load as what it is. */
static ALWAYS int walk_apart(int kind, const char *ref, const char *cand, int n, struct lanes_f *a,
                             const struct bounds_f *b, int *blocks_apart)
{
    struct float8_sums sums[PARTS] = {{.apart = 0}};
    char last[2][AT_A_TIME] = {{0}}; /* what is left over, with zeros on both sides, which add nothing */
    int whole = n / AT_A_TIME * AT_A_TIME, groups = (n + IN_GROUP - 1) / IN_GROUP;
    for (int i = 0; i < whole; i += AT_A_TIME) float8_squares(kind, sums, ref + i, cand + i, i);
    if (whole < n) {
        __builtin_memcpy(last[0], ref + whole, (size_t)(n - whole));
        __builtin_memcpy(last[1], cand + whole, (size_t)(n - whole));
        float8_squares(kind, sums, last[0], last[1], whole);
    }
    const uint64_t firsts = 0x5555555555555555; /* the first eight of each group */
    uint64_t eights = sums[0].apart | sums[PARTS - 1].apart, in_groups = (eights | eights >> 1) & firsts;
    int apart = __builtin_popcountll(in_groups);
    for (int part = 0; part < PARTS; part++) { /* what is equal adds nothing: half a group is passed over as well */
        uint64_t own = PARTS == 1 ? in_groups : eights >> part & firsts;
        a[part].inside += (groups - __builtin_popcountll(own)) * LANES;
        for (; own; own &= own - 1) {
            int i = EIGHT * __builtin_ctzll(own), at = (i < whole ? i : i - whole) + part * LANES;
            const char *r = (i < whole ? ref : last[0]) + at, *c = (i < whole ? cand : last[1]) + at;
            vec_f v = load_f(kind, r);
            step_f(a + part, v, load_f(kind, c) - v, b, 0);
        }
    }
#if VECTOR == 64
    a->rr = (sums->rr[0] + sums->rr[1]) + (sums->rr[2] + sums->rr[3]);
#else
    for (int k = 0; k < PARTS; k++) a[k].rr = (sums[0].rr[k] + sums[1].rr[k]) + (sums[0].rr[2 + k] + sums[1].rr[2 + k]);
#endif
    if (apart > groups - groups / 4) *blocks_apart = BLOCKS_APART;
    return any8(sums[0].odd | sums[PARTS - 1].odd);
}

/* Every group. The same. */
static ALWAYS int walk_plain(int kind, const char *ref, const char *cand, int n, int64_t readable, struct lanes_f *a,
                             const struct bounds_f *b)
{
    octets odd = {0}, r = {0}, c = {0};
    int i = 0;
    for (int part = 0; part < PARTS; part++) walk_f(part, kind, kind, ref, cand, n, readable, a + part, b, 0);
    if (kind == E5M2) return 0;
    for (; i + VECTOR <= n; i += VECTOR) {
        __builtin_memcpy(&r, ref + i, sizeof r);
        __builtin_memcpy(&c, cand + i, sizeof c);
        odd |= is_nan8(kind, r) | is_nan8(kind, c);
    }
    __builtin_memcpy(&r, ref + i, (size_t)(n - i)); /* over elements that were looked at, or zeros */
    __builtin_memcpy(&c, cand + i, (size_t)(n - i));
    return any8(odd | is_nan8(kind, r) | is_nan8(kind, c));
}

static ALWAYS int walk_float8(int kind, const char *ref, const char *cand, int n, int64_t readable, struct lanes_f *a,
                              const struct bounds_f *usual, int *blocks_apart)
{
    const float scale = SCALE(kind);
    struct bounds_f b = *usual;
    b.guard /= scale;
    b.atol = b.atol / scale + 0x1p-149f; /* with 0, equal elements would count as nearly outside */
    int is_odd = 0;
    if (*blocks_apart > 0) --*blocks_apart, is_odd = walk_plain(kind, ref, cand, n, readable, a, &b);
    else is_odd = walk_apart(kind, ref, cand, n, a, &b, blocks_apart);
    for (int part = 0; part < PARTS; part++) {
        a[part].sum_abs *= scale, a[part].largest *= scale;
        a[part].dd *= scale * scale, a[part].rr *= scale * scale, a[part].rd *= scale * scale;
    }
    return is_odd;
}
