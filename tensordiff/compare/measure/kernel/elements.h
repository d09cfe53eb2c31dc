/* Elements of every type as floats: one vector at a time where they lie in memory, or a block at a time as a copy. */

/* The order is that of ``KINDS`` in compiled_pass.py. */
enum kind { F32, F64, BF16, F16, I8, U8, BOOL, E4M3FN, E4M3FNUZ, E5M2, E5M2FNUZ, E8M0, TABLE, I16, U16, I32, U32, I64, U64,
            COPIED };

static ALWAYS int is_long(int kind) { return kind == I64 || kind == U64; }
static ALWAYS int is_whole(int kind) { return kind == I8 || kind == U8 || kind == BOOL || kind >= I16; }
static ALWAYS int is_float8(int kind) { return kind >= E4M3FN && kind <= E5M2FNUZ; }
static ALWAYS int is_byte(int kind) { return kind >= I8 && kind <= TABLE; }
static ALWAYS int fits_float(int kind) { return kind == F32 || (kind >= BF16 && kind <= U16); }

static ALWAYS float float_of(uint32_t bits) { union { uint32_t u; float f; } v = {.u = bits}; return v.f; }
static ALWAYS float of_bf16(uint16_t x) { return float_of((uint32_t)x << 16); }
static ALWAYS float of_f16(uint16_t x)
{
    float f = float_of((x & 0x7fffu) << 13) * 0x1p112f; /* right for numbers that are not normal, too */
    union { float f; uint32_t u; } v = {.f = f};
    return float_of(v.u | (f >= 65536.0f ? 0x7f800000u : 0) | (uint32_t)(x & 0x8000) << 16);
}

/* A float of one byte: its bits where a float32 has them, times what brings the exponent's bias to float32's.
 * Sign extension puts the sign bit at the top. */
static ALWAYS float of_byte(uint8_t x, int shift, float scale)
{
    uint32_t bits = (uint32_t)(int32_t)(int8_t)x << shift;
    return float_of(bits & (0x80000000u | 0x7fu << shift)) * scale;
}

#define EACH(T, value) \
    for (int i = 0; i < n; i++) { T x; __builtin_memcpy(&x, p + i * (int)sizeof x, sizeof x); out[i] = (value); }
#define SEEK(T, S, test) \
    for (int i = 0; i < n; i++) { T x; __builtin_memcpy(&x, p + i * (int)sizeof x, sizeof x); odd |= (S)(test); }

/* A block in float32. Whether it holds an element that is not what it became: NaN and infinity of one-byte types. */
static int copy_f(int kind, const float *table, const char *p, int n, float *restrict out)
{
    uint8_t odd = 0;
    switch (kind) {
    case F32: EACH(float, x) break;
    case BF16: EACH(uint16_t, of_bf16(x)) break;
    case F16: EACH(uint16_t, of_f16(x)) break;
    case I8: EACH(int8_t, (float)x) break;
    case U8: EACH(uint8_t, (float)x) break;
    case BOOL: EACH(uint8_t, (float)x) SEEK(uint8_t, uint8_t, x > 1) break;
    case E4M3FN: EACH(uint8_t, of_byte(x, 20, 0x1p120f)) SEEK(uint8_t, uint8_t, (x & 0x7f) == 0x7f) break;
    case E4M3FNUZ: EACH(uint8_t, of_byte(x, 20, 0x1p119f)) SEEK(uint8_t, uint8_t, x == 0x80) break;
    case E5M2: EACH(uint8_t, of_byte(x, 21, 0x1p112f)) SEEK(uint8_t, uint8_t, (x & 0x7f) >= 0x7c) break;
    case E5M2FNUZ: EACH(uint8_t, of_byte(x, 21, 0x1p111f)) SEEK(uint8_t, uint8_t, x == 0x80) break;
    case E8M0: EACH(uint8_t, float_of((uint32_t)x << 23)) SEEK(uint8_t, uint8_t, x == 0 || x == 0xff) break;
    case TABLE: EACH(uint8_t, table[x]) break;
    case I16: EACH(int16_t, (float)x) break;
    case U16: EACH(uint16_t, (float)x) break;
    }
    return odd != 0;
}

/* A block in float64; one-byte types by a table of their 256 values, so that no element is odd. Whether it holds an
 * integer that float64 does not. */
static int copy_d(int kind, const float *table, const char *p, int n, double *restrict out)
{
    uint64_t odd = 0;
    switch (kind) {
    case F32: EACH(float, x) break;
    case F64: EACH(double, x) break;
    case BF16: EACH(uint16_t, of_bf16(x)) break;
    case F16: EACH(uint16_t, of_f16(x)) break;
    case I16: EACH(int16_t, x) break;
    case U16: EACH(uint16_t, x) break;
    case I32: EACH(int32_t, x) break;
    case U32: EACH(uint32_t, x) break;
    case I64: EACH(int64_t, (double)x) SEEK(uint64_t, uint64_t, (x + (1ull << 53)) >> 54) break;
    case U64: EACH(uint64_t, (double)x) SEEK(uint64_t, uint64_t, x >> 53) break;
    default: EACH(uint8_t, table[x]) break;
    }
    return odd != 0;
}

/* --- a vector at a time --------------------------------------------------------------------------- */
#define VECTORS(S, SIZE, REAL, INT, UINT)                    \
    typedef REAL vec_##S __attribute__((vector_size(SIZE))); \
    typedef INT ints_##S __attribute__((vector_size(SIZE))); \
    typedef UINT uints_##S __attribute__((vector_size(SIZE)));
VECTORS(f, VECTOR, float, int32_t, uint32_t)
VECTORS(d, VECTOR, double, int64_t, uint64_t)
VECTORS(f8, 32, float, int32_t, uint32_t)
VECTORS(d4, 32, double, int64_t, uint64_t)
typedef uint16_t shorts __attribute__((vector_size(VECTOR / 2)));
typedef int16_t signed_shorts __attribute__((vector_size(VECTOR / 2)));

typedef int8_t bytes __attribute__((vector_size(VECTOR / 4)));
typedef uint8_t ubytes __attribute__((vector_size(VECTOR / 4)));

static ALWAYS int bytes_in_lanes(int kind, int usual)
{
    return is_byte(kind) ? 1 : kind == BF16 || kind == F16 || kind == I16 || kind == U16 ? 2 : usual;
}

static ALWAYS vec_d load_d(int kind, const char *p)
{
    vec_d v;
    (void)kind;
    __builtin_memcpy(&v, p, sizeof v);
    return v;
}

static ALWAYS vec_f half_f(shorts half)
{
#if defined(__F16C__) && !defined(__clang__) /* gcc would convert one by one */
    typedef short words __attribute__((vector_size(VECTOR / 2)));
#if VECTOR == 64
    return (vec_f)__builtin_ia32_vcvtph2ps512_mask((words)half, (vec_f){0}, 0xffff, 4);
#else
    return (vec_f)__builtin_ia32_vcvtph2ps256((words)half);
#endif
#elif (defined(__F16C__) && defined(__clang__)) || defined(__aarch64__)
    typedef _Float16 halfs __attribute__((vector_size(VECTOR / 2)));
    return __builtin_convertvector((halfs)half, vec_f);
#else
    uints_f wide = __builtin_convertvector(half, uints_f);
    vec_f v = (vec_f)((wide & 0x7fff) << 13) * 0x1p112f;
    return (vec_f)((uints_f)v | ((uints_f)(v >= 65536.0f) & 0x7f800000u) | (wide & 0x8000) << 16);
#endif
}

static ALWAYS vec_f load_f(int kind, const char *p)
{
    vec_f v;
    shorts half;
    if (kind == F32 || kind == COPIED) {
        __builtin_memcpy(&v, p, sizeof v);
        return v;
    }
    if (kind == I32) {
        ints_f w;
        __builtin_memcpy(&w, p, sizeof w);
        return __builtin_convertvector(w, vec_f);
    }
    if (is_byte(kind)) {
        bytes b;
        __builtin_memcpy(&b, p, sizeof b);
        if (kind == U8) return __builtin_convertvector((ubytes)b, vec_f);
        if (kind == I8) return __builtin_convertvector(__builtin_convertvector(b, ints_f), vec_f);
        shorts s = (shorts)__builtin_convertvector(b, signed_shorts);
        if (kind == E4M3FN || kind == E4M3FNUZ) return half_f(s << 7 & 0xbf80); /* see SCALE in float8.h */
        if (kind == E5M2 || kind == E5M2FNUZ) return half_f(s << 8);
    }
    __builtin_memcpy(&half, p, sizeof half);
    if (kind == I16) return __builtin_convertvector((signed_shorts)half, vec_f);
    if (kind == U16) return __builtin_convertvector(half, vec_f);
    if (kind == F16) return half_f(half);
#if defined(__AVX2__) && VECTOR == 32 /* both halves of a vector load the same 16 bytes, and each takes its four: one operation, not two */
    typedef char chars __attribute__((vector_size(32)));
    typedef uint64_t pairs __attribute__((vector_size(32)));
    uint64_t low, high;
    __builtin_memcpy(&low, p, 8);
    __builtin_memcpy(&high, p + 8, 8);
    const chars from = {-1, -1, 0, 1, -1, -1, 2, 3, -1, -1, 4, 5, -1, -1, 6, 7,
                        -1, -1, 8, 9, -1, -1, 10, 11, -1, -1, 12, 13, -1, -1, 14, 15};
    return (vec_f)__builtin_ia32_pshufb256((chars)(pairs){low, high, low, high}, from);
#else
    return (vec_f)(__builtin_convertvector(half, uints_f) << 16);
#endif
}

/* Whether a block holds an integer that is not within 2^23: the difference of two such is exact in float32. */
static ALWAYS int has_large(const char *p, int n)
{
    uint32_t odd = 0;
    SEEK(uint32_t, uint32_t, x + (1u << 23))
    return odd >> 24 != 0;
}
