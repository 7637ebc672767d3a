/* Resizing with antialiasing, as Pillow's Image.resize: weights in units of 2^-22, and results
 * rounded to bytes after each of the two directions.
 *
 * Weights are kept in two parts, as processors multiply pairs of 16 bits and add them up at once.
 * The parts' sums together are Pillow's sum, to the last bit.
 */

#include "pixels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define BITS 22 /* of a weight's fraction */
#define LOW 8   /* of them in its second part */
#define HALF (1 << (BITS - 1))

static enum verdict spread(struct line *line);

static double cubic(double x) {
    const double a = -0.5;
    x = fabs(x);
    if (x < 1.0) {
        return ((a + 2.0) * x - (a + 3.0)) * x * x + 1;
    }
    return x < 2.0 ? (((x - 5) * x + 8) * x - 4) * a : 0.0;
}

static double triangle(double x) {
    x = fabs(x);
    return x < 1.0 ? 1.0 - x : 0.0;
}

enum verdict line_make(
    struct line *line, int inputs, double start, double stop, int outputs, int first, int last,
    int bicubic) {
    double scale = (stop - start) / outputs;
    double shrink = scale < 1.0 ? 1.0 : scale, inverse = 1.0 / shrink;
    double support = (bicubic ? 2.0 : 1.0) * shrink;
    int most = (int)ceil(support) * 2 + 1, wanted = last - first;
    line->first = first, line->last = last, line->steps = 0, line->spread = NULL;
    line->taps = (most + TAPS - 1) / TAPS * TAPS;
    size_t count = (size_t)wanted * line->taps;
    line->starts = malloc(wanted * sizeof(int));
    line->counts = malloc(wanted * sizeof(int));
    line->high = calloc(count, sizeof(int16_t));
    line->low = calloc(count, sizeof(int16_t));
    double *exact = malloc(most * sizeof(double));
    if (!line->starts || !line->counts || !line->high || !line->low || !exact) {
        free(exact);
        line_free(line);
        return NO_MEMORY;
    }
    for (int i = 0; i < wanted; i++) {
        double centre = start + (first + i + 0.5) * scale, sum = 0.0;
        int from = (int)(centre - support + 0.5), to = (int)(centre + support + 0.5);
        from = from < 0 ? 0 : from;
        to = to > inputs ? inputs : to;
        for (int j = from; j < to; j++) {
            double at = (j - centre + 0.5) * inverse;
            sum += exact[j - from] = bicubic ? cubic(at) : triangle(at);
        }
        for (int j = 0; j < to - from; j++) {
            double weight = (sum != 0.0 ? exact[j] / sum : exact[j]) * (1 << BITS);
            int rounded = (int)(weight + (weight < 0 ? -0.5 : 0.5));
            line->high[(size_t)i * line->taps + j] = rounded >> LOW;
            line->low[(size_t)i * line->taps + j] = rounded & ((1 << LOW) - 1);
        }
        line->starts[i] = from;
        line->counts[i] = to - from;
        int steps = (to - from + TAPS - 1) / TAPS;
        line->steps = steps > line->steps ? steps : line->steps;
    }
    free(exact);
    if (spread(line) != FINE) {
        line_free(line);
        return NO_MEMORY;
    }
    return FINE;
}

void line_free(struct line *line) {
    free(line->starts);
    free(line->counts);
    free(line->high);
    free(line->low);
    free(line->spread);
    memset(line, 0, sizeof *line);
}

void line_reach(const struct line *line, int *start, int *stop) {
    int last = line->last - line->first - 1;
    *start = line->starts[0];
    *stop = line->starts[last] + line->counts[last];
}

int line_slack(const struct line *line) {
    return line->steps * TAPS;
}

static inline uint8_t clipped(int32_t high, int32_t low) {
    int32_t sum = (int32_t)((uint32_t)high << LOW) + low + HALF;
    sum >>= BITS;
    return sum < 0 ? 0 : sum > 255 ? 255 : sum;
}

static void row_anywhere(const struct line *line, const pixel *in, int offset, pixel *out) {
    for (int i = 0; i < line->last - line->first; i++) {
        const pixel *from = in + (line->starts[i] - offset);
        const int16_t *high = line->high + (size_t)i * line->taps;
        const int16_t *low = line->low + (size_t)i * line->taps;
        int32_t highs[4] = {0}, lows[4] = {0};
        for (int j = 0; j < line->counts[i]; j++) {
            for (int channel = 0; channel < 4; channel++) {
                highs[channel] += from[j][channel] * high[j];
                lows[channel] += from[j][channel] * low[j];
            }
        }
        for (int channel = 0; channel < 4; channel++) {
            out[i][channel] = clipped(highs[channel], lows[channel]);
        }
    }
}

/* Bytes from `x` on of one output row. */
static void column_anywhere(
    const uint8_t *from, size_t bytes, size_t x, const int16_t *high, const int16_t *low, int count,
    uint8_t *out) {
    for (; x < bytes; x++) {
        int32_t highs = 0, lows = 0;
        for (int j = 0; j < count; j++) {
            highs += from[j * bytes + x] * high[j];
            lows += from[j * bytes + x] * low[j];
        }
        out[x] = clipped(highs, lows);
    }
}

#ifdef __x86_64__
#include <immintrin.h>

#define AVX2 __attribute__((target("avx2")))

/* Eight sums, to the nearest whole number. */
AVX2 static inline __m256i whole(__m256i high, __m256i low) {
    __m256i sum = _mm256_add_epi32(_mm256_slli_epi32(high, LOW), low);
    return _mm256_srai_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(HALF)), BITS);
}

AVX2 static inline __m256i pairs(const int16_t *weights) {
    int32_t two;
    memcpy(&two, weights, sizeof two);
    return _mm256_set1_epi32(two);
}

/* Sums of two pixels, each as two halves to be added: their colours, as whole numbers. */
AVX2 static inline __m256i both(const __m256i high[2], const __m256i low[2]) {
    __m256i h = _mm256_add_epi32(
        _mm256_permute2x128_si256(high[0], high[1], 0x20),
        _mm256_permute2x128_si256(high[0], high[1], 0x31));
    __m256i l = _mm256_add_epi32(
        _mm256_permute2x128_si256(low[0], low[1], 0x20),
        _mm256_permute2x128_si256(low[0], low[1], 0x31));
    return whole(h, l);
}

/* Two rows, so that weights are fetched once for both. */
AVX2 __attribute__((always_inline)) static inline void two_rows(
    const struct line *line, const pixel *const in[2], int offset, int steps, pixel *const out[2]) {
    /* of two pixels of 16 bits a colour, the same colours beside each other */
    const __m256i beside = _mm256_broadcastsi128_si256(
        _mm_setr_epi8(0, 1, 8, 9, 2, 3, 10, 11, 4, 5, 12, 13, 6, 7, 14, 15));
    int wanted = line->last - line->first;
    const __m256i *weight = line->spread;
    for (int i = 0; i < wanted; i += 2) {
        __m256i high[2][2] = {{{0}}}, low[2][2] = {{{0}}};
        for (int k = 0; k < 2 && i + k < wanted; k++) {
            int start = line->starts[i + k] - offset;
            for (int j = 0; j < steps; j++, weight += 2) {
                for (int y = 0; y < 2; y++) {
                    __m128i four = _mm_loadu_si128((const void *)(in[y] + start + TAPS * j));
                    __m256i values = _mm256_shuffle_epi8(_mm256_cvtepu8_epi16(four), beside);
                    high[y][k] = _mm256_add_epi32(
                        high[y][k], _mm256_madd_epi16(values, weight[0]));
                    low[y][k] = _mm256_add_epi32(low[y][k], _mm256_madd_epi16(values, weight[1]));
                }
            }
        }
        __m256i sums = _mm256_packs_epi32(both(high[0], low[0]), both(high[1], low[1]));
        __m128i packed = _mm_packus_epi16(
            _mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        int32_t four[4]; /* the first row's first, the second's first, their seconds */
        memcpy(four, &packed, sizeof four);
        for (int k = 0; k < 2 && i + k < wanted; k++) {
            memcpy(out[0][i + k], &four[2 * k], sizeof(pixel));
            memcpy(out[1][i + k], &four[2 * k + 1], sizeof(pixel));
        }
    }
}

AVX2 static void rows_avx2(
    const struct line *line, const pixel *const in[2], int offset, pixel *const out[2]) {
    switch (line->steps) { /* unrolled */
    case 1: two_rows(line, in, offset, 1, out); break;
    case 2: two_rows(line, in, offset, 2, out); break;
    case 3: two_rows(line, in, offset, 3, out); break;
    case 4: two_rows(line, in, offset, 4, out); break;
    default: two_rows(line, in, offset, line->steps, out);
    }
}

/* The weights as two_rows takes them: of four inputs, each two's beside each other, four times. */
static enum verdict spread(struct line *line) {
    size_t wanted = line->last - line->first, count = wanted * line->steps * 2;
    int16_t *to = aligned_alloc(sizeof(__m256i), count * sizeof(__m256i));
    if (to == NULL) {
        return NO_MEMORY;
    }
    line->spread = to;
    for (size_t i = 0; i < wanted; i++) {
        for (int j = 0; j < line->steps; j++, to += 32) {
            size_t at = i * line->taps + j * TAPS;
            for (int k = 0; k < 16; k++) {
                to[k] = line->high[at + k / 8 * 2 + k % 2];
                to[k + 16] = line->low[at + k / 8 * 2 + k % 2];
            }
        }
    }
    return FINE;
}

AVX2 static size_t column_avx2(
    const uint8_t *from, size_t bytes, const int16_t *high, const int16_t *low, int count,
    uint8_t *out) {
    size_t x = 0;
    for (; x + 16 <= bytes; x += 16) {
        __m256i highs[2] = {_mm256_setzero_si256(), _mm256_setzero_si256()};
        __m256i lows[2] = {highs[0], highs[0]};
        for (int j = 0; j < count; j += 2) {
            const uint8_t *one = from + j * bytes + x;
            const uint8_t *next = j + 1 < count ? one + bytes : one; /* by the weight 0 */
            __m128i a = _mm_loadu_si128((const void *)one), b = _mm_loadu_si128((const void *)next);
            __m256i h = pairs(high + j), l = pairs(low + j);
            __m256i values = _mm256_cvtepu8_epi16(_mm_unpacklo_epi8(a, b));
            highs[0] = _mm256_add_epi32(highs[0], _mm256_madd_epi16(values, h));
            lows[0] = _mm256_add_epi32(lows[0], _mm256_madd_epi16(values, l));
            values = _mm256_cvtepu8_epi16(_mm_unpackhi_epi8(a, b));
            highs[1] = _mm256_add_epi32(highs[1], _mm256_madd_epi16(values, h));
            lows[1] = _mm256_add_epi32(lows[1], _mm256_madd_epi16(values, l));
        }
        __m256i sums = _mm256_packs_epi32(whole(highs[0], lows[0]), whole(highs[1], lows[1]));
        sums = _mm256_permute4x64_epi64(sums, _MM_SHUFFLE(3, 1, 2, 0));
        __m128i packed = _mm_packus_epi16(
            _mm256_castsi256_si128(sums), _mm256_extracti128_si256(sums, 1));
        _mm_storeu_si128((void *)(out + x), packed);
    }
    return x;
}

#define HAS_AVX2 __builtin_cpu_supports("avx2")
#else
#define HAS_AVX2 0
#define rows_avx2(...)
#define column_avx2(...) 0

static enum verdict spread(struct line *line) {
    (void)line;
    return FINE;
}
#endif

static int plainly; /* whether to do without wide instructions */

void do_plainly(int yes) {
    plainly = yes;
}

int has_avx2(void) {
    return HAS_AVX2 && !plainly;
}

void resize_two(
    const struct line *line, const pixel *const in[2], int offset, pixel *const out[2]) {
    if (has_avx2()) {
        rows_avx2(line, in, offset, out);
    } else {
        row_anywhere(line, in[0], offset, out[0]);
        row_anywhere(line, in[1], offset, out[1]);
    }
}

void resize_rows(const struct line *line, const pixel *in, int offset, int width, pixel *out) {
    size_t bytes = (size_t)width * sizeof(pixel);
    int wide = has_avx2();
    for (int i = 0; i < line->last - line->first; i++) {
        const uint8_t *from = *in + (line->starts[i] - offset) * bytes;
        const int16_t *high = line->high + (size_t)i * line->taps;
        const int16_t *low = line->low + (size_t)i * line->taps;
        uint8_t *to = *out + i * bytes;
        size_t x = wide ? column_avx2(from, bytes, high, low, line->counts[i], to) : 0;
        column_anywhere(from, bytes, x, high, low, line->counts[i], to);
    }
}
