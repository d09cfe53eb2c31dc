/* A block of float8, of both sides the same kind. An element that is equal on both sides adds to nothing but the
 * reference's squares, and where two runs agree most are: squares are summed up first, 32 elements at a time, and only
 * the groups of eight that differ are taken step by step. Where nearly all differ, the blocks after it go the plain way,
 * which takes every group. Which way a block goes depends on nothing but the elements of its bucket. */

typedef uint8_t octets __attribute__((vector_size(32)));
typedef uint16_t halfs16 __attribute__((vector_size(32)));
typedef int64_t groups4 __attribute__((vector_size(32)));
enum { IN_GROUP = 8, AT_A_TIME = 32, BLOCKS_APART = 15 };

/* Lanes hold e4m3 over 2^8, as float16 does, and its kin by their bias: bounds are over it as well, and sums are put
 * right, all without rounding. The largest of e5m2fnuz are infinite in float16: their blocks go to float64. */
#define SCALE(kind) ((kind) == E4M3FN ? 0x1p8f : (kind) == E4M3FNUZ ? 0x1p7f : (kind) == E5M2FNUZ ? 0.5f : 1.0f)

/* The squares of 16 numbers of float16, into two sums. */
static ALWAYS void add_squares(vec_f *sums, halfs16 numbers)
{
    shorts halves[2];
    __builtin_memcpy(halves, &numbers, sizeof numbers);
    for (int k = 0; k < 2; k++) {
        vec_f v = half_f(halves[k]);
        sums[k] += v * v;
    }
}

/* Which groups of 32 elements differ, a bit for each. */
static ALWAYS uint64_t groups_apart(octets r, octets c)
{
#if defined(__AVX2__)
    typedef double four __attribute__((vector_size(32)));
    return 15 ^ (unsigned)__builtin_ia32_movmskpd256((four)((groups4)r == (groups4)c));
#else
    groups4 x = (groups4)r ^ (groups4)c;
    return (uint64_t)((x[0] != 0) | (x[1] != 0) << 1 | (x[2] != 0) << 2 | (x[3] != 0) << 3);
#endif
}

/* Where a kind is NaN, which lanes would load as a number: of e5m2 they do not. */
static ALWAYS octets is_nan8(int kind, octets x)
{
    return kind == E5M2 ? (octets){0} : kind == E4M3FN ? (octets)((x & 0x7f) == 0x7f) : (octets)(x == 0x80);
}
static ALWAYS int any8(octets mask)
{
    groups4 g = (groups4)mask;
    return (g[0] | g[1] | g[2] | g[3]) != 0;
}

struct float8_sums { vec_f rr[4]; octets odd; uint64_t apart; };

/* 32 elements, the first of them at i: even ones, then odd ones. Squares do not ask for signs. */
static ALWAYS void float8_squares(int kind, struct float8_sums *a, const char *ref, const char *cand, int i)
{
    octets r, c;
    __builtin_memcpy(&r, ref, sizeof r);
    __builtin_memcpy(&c, cand, sizeof c);
    a->apart |= groups_apart(r, c) << i / IN_GROUP;
    a->odd |= is_nan8(kind, r) | is_nan8(kind, c);
    if (kind == E4M3FN || kind == E4M3FNUZ) {
        add_squares(a->rr, (halfs16)r << 7 & 0x3f80);
        add_squares(a->rr + 2, (halfs16)r >> 1 & 0x3f80);
    } else {
        add_squares(a->rr, (halfs16)r << 8);
        add_squares(a->rr + 2, (halfs16)r & 0xff00);
    }
}

/* Group by group of those that differ. Whether it holds an element that lanes do not load as what it is. */
static ALWAYS int walk_apart(int kind, const char *ref, const char *cand, int n, struct lanes_f *a,
                             const struct bounds_f *b, int *blocks_apart)
{
    struct float8_sums sums = {.apart = 0};
    char last[2][AT_A_TIME] = {{0}}; /* what is left over, with zeros on both sides, which add nothing */
    int whole = n / AT_A_TIME * AT_A_TIME, groups = (n + IN_GROUP - 1) / IN_GROUP;
    for (int i = 0; i < whole; i += AT_A_TIME) float8_squares(kind, &sums, ref + i, cand + i, i);
    if (whole < n) {
        __builtin_memcpy(last[0], ref + whole, (size_t)(n - whole));
        __builtin_memcpy(last[1], cand + whole, (size_t)(n - whole));
        float8_squares(kind, &sums, last[0], last[1], whole);
    }
    int apart = __builtin_popcountll(sums.apart);
    for (uint64_t left = sums.apart; left; left &= left - 1) {
        int i = IN_GROUP * __builtin_ctzll(left);
        const char *r = i < whole ? ref + i : last[0] + (i - whole), *c = i < whole ? cand + i : last[1] + (i - whole);
        vec_f v = load_f(kind, r);
        step_f(a, v, load_f(kind, c) - v, b, 0);
    }
    a->rr = (sums.rr[0] + sums.rr[1]) + (sums.rr[2] + sums.rr[3]);
    a->inside += (groups - apart) * IN_GROUP;
    if (apart > groups - groups / 4) *blocks_apart = BLOCKS_APART;
    return any8(sums.odd);
}

/* Every group. The same. */
static ALWAYS int walk_plain(int kind, const char *ref, const char *cand, int n, int64_t readable, struct lanes_f *a,
                             const struct bounds_f *b)
{
    octets odd = {0}, r = {0}, c = {0};
    int i = 0;
    walk_f(kind, kind, ref, cand, n, readable, a, b, 0);
    if (kind == E5M2) return 0;
    for (; i + AT_A_TIME <= n; i += AT_A_TIME) {
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
    a->sum_abs *= scale, a->largest *= scale;
    a->dd *= scale * scale, a->rr *= scale * scale, a->rd *= scale * scale;
    return is_odd;
}
