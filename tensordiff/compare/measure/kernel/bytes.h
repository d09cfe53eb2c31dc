/* Whole numbers of one byte, where equal is all that counts as inside: sums in integers, which are exact. */

typedef int8_t bytes32 __attribute__((vector_size(32)));
typedef uint8_t ubytes32 __attribute__((vector_size(32)));
typedef int8_t bytes16 __attribute__((vector_size(16)));
typedef uint8_t ubytes16 __attribute__((vector_size(16)));
typedef int16_t words16 __attribute__((vector_size(32)));
typedef uint16_t uwords16 __attribute__((vector_size(32)));
typedef int32_t sums8 __attribute__((vector_size(32)));
enum { AT_ONCE = 32, STRETCH = 4 * BLOCK }; /* 128 errors of at most 255 fit a lane of 16 bits */

struct byte_sums { uwords16 sum_abs; ubytes32 largest, at_zero, equal; sums8 rr, rc, cc; };

#define LARGER(T, a, b) ((T)(((a) & (T)((a) > (b))) | ((b) & ~(T)((a) > (b)))))

/* Products of neighbours, added up. */
static ALWAYS sums8 products_of(words16 a, words16 b)
{
#if defined(__AVX2__)
    typedef short shorts16 __attribute__((vector_size(32)));
    return (sums8)__builtin_ia32_pmaddwd256((shorts16)a, (shorts16)b);
#else
    typedef uint32_t usums8 __attribute__((vector_size(32)));
    sums8 x = (sums8)a, y = (sums8)b; /* one neighbour by a shift, the other by two */
    return (x >> 16) * (y >> 16) + ((sums8)((usums8)x << 16) >> 16) * ((sums8)((usums8)y << 16) >> 16);
#endif
}

static ALWAYS bytes32 load_bytes(int kind, const char *p)
{
    bytes32 b;
    __builtin_memcpy(&b, p, sizeof b);
    return kind == BOOL ? (bytes32)(b != 0) & 1 : b;
}

static ALWAYS words16 widened(int kind, bytes32 b, int half)
{
    bytes16 halves[2];
    __builtin_memcpy(halves, &b, sizeof b);
    if (kind == I8) return __builtin_convertvector(halves[half], words16);
    return __builtin_convertvector((ubytes16)halves[half], words16);
}

static ALWAYS void byte_step(int kind, struct byte_sums *a, bytes32 r, bytes32 c)
{
    ubytes32 x = (ubytes32)r, y = (ubytes32)c, is_above = kind == I8 ? (ubytes32)(c > r) : (ubytes32)(y > x);
    ubytes32 error = ((y - x) & is_above) | ((x - y) & ~is_above);
    a->sum_abs += ((uwords16)error & 0xff) + ((uwords16)error >> 8);
    a->largest = LARGER(ubytes32, error, a->largest);
    ubytes32 at_zero = error & (ubytes32)(r == 0);
    a->at_zero = LARGER(ubytes32, at_zero, a->at_zero);
    a->equal -= (ubytes32)(c == r);
    for (int half = 0; half < 2; half++) {
        words16 u = widened(kind, r, half), v = widened(kind, c, half);
        a->rr += products_of(u, u), a->rc += products_of(u, v), a->cc += products_of(v, v);
    }
}

/* Whether an error over its number is above a bar. No two ratios of bytes are nearer to each other than BAND. */
static RARE int has_above(int kind, const char *ref, const char *cand, int n, double bar)
{
    float above = (float)(bar * (1 + BAND));
    int found = 0;
    for (int i = 0; i < n; i++) {
        int r = kind == I8 ? (int8_t)ref[i] : (uint8_t)ref[i], c = kind == I8 ? (int8_t)cand[i] : (uint8_t)cand[i];
        if (kind == BOOL) r = r != 0, c = c != 0;
        int d = c > r ? c - r : r - c;
        found |= (r != 0) & ((float)d > above * (float)(r < 0 ? -r : r));
    }
    return found;
}

static ALWAYS void bucket_bytes(int kind, const struct how *how, struct part p, int64_t first, int64_t last,
                                double *cells, quad *total, double *outside)
{
    for (int64_t start = first; start < last; start += STRETCH) {
        int n = (int)(last - start < STRETCH ? last - start : STRETCH), i = 0;
        const char *ref = p.ref + start, *cand = p.cand + start;
        struct byte_sums a = {{0}};
        for (; i + AT_ONCE <= n; i += AT_ONCE) byte_step(kind, &a, load_bytes(kind, ref + i), load_bytes(kind, cand + i));
        int padding = i < n ? AT_ONCE - (n - i) : 0;
        if (padding) { /* zeros on both sides add nothing, but are equal */
            char rest[2][AT_ONCE] = {{0}};
            __builtin_memcpy(rest[0], ref + i, (size_t)(n - i));
            __builtin_memcpy(rest[1], cand + i, (size_t)(n - i));
            byte_step(kind, &a, load_bytes(kind, rest[0]), load_bytes(kind, rest[1]));
        }
        int sum_abs = 0, equal = -padding, largest = 0, at_zero = 0, rr = 0, rc = 0, cc = 0;
        for (int k = 0; k < 32; k++) {
            equal += a.equal[k];
            largest = a.largest[k] > largest ? a.largest[k] : largest;
            at_zero = a.at_zero[k] > at_zero ? a.at_zero[k] : at_zero;
        }
        for (int k = 0; k < 16; k++) sum_abs += a.sum_abs[k];
        for (int k = 0; k < 8; k++) rr += a.rr[k], rc += a.rc[k], cc += a.cc[k];
        *total += (quad){sum_abs, cc - 2 * rc + rr, rr, rc - rr};
        *outside += n - equal;
        double bar = cells[PEAKS + 1];
        if (largest > cells[PEAKS] || at_zero / REL_GUARD > bar || (largest > bar && has_above(kind, ref, cand, n, bar)))
            for (i = 0; i < n; i += BLOCK)
                exact_block(how, p, start + i, n - i < BLOCK ? n - i : BLOCK, 0, cells, total, outside);
    }
}
