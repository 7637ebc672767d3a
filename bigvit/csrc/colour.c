/* Blur, gray, solarizing and colour jitter, as Pillow's GaussianBlur, convert("L"), solarize,
 * ImageEnhance, and hues by convert("HSV"). */

#include "pixels.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define PASSES 3 /* of a box, which make a Gaussian */

/* Box radius of which three passes have a deviation, in Pillow's arithmetic (the paper:
 * Gwosdek et al. 2011, equations 7, 11 and 14). */
static float box_radius(float sigma) {
    float variance = sigma * sigma / PASSES;
    float length = sqrt(12.0 * variance + 1.0);
    float whole = floor((length - 1.0) / 2.0);
    float part = (2 * whole + 1) * (whole * (whole + 1) - 3 * variance);
    part /= 6 * (variance - (whole + 1) * (whole + 1));
    return whole + part;
}

static inline int within(int place, int length) {
    return place < 0 ? 0 : place >= length ? length - 1 : place;
}

/* A box along columns: of its weights, those of its inside and of the two pixels at its ends. */
struct box {
    int radius;
    uint32_t inner, outer; /* in units of 2^-24 */
};

static struct box box_of(float width) {
    struct box box = {.radius = (int)width};
    box.inner = (uint32_t)((float)(1 << 24) / (width * 2 + 1));
    box.outer = ((1 << 24) - (box.radius * 2 + 1) * box.inner) / 2;
    return box;
}

/* One row of a pass, from byte `x` on: the sums move on to it. */
static void box_row(
    const struct box *box, const uint8_t *before, const uint8_t *last, const uint8_t *after, int x,
    int bytes, int32_t *sums, uint8_t *out) {
    for (; x < bytes; x++) {
        sums[x] += last[x] - before[x];
        out[x] = (sums[x] * box->inner + (before[x] + after[x]) * box->outer + (1 << 23)) >> 24;
    }
}

#ifdef __x86_64__
#include <immintrin.h>

#define LOW 10 /* bits of a weight's second part, as processors multiply pairs of 16 bits */

__attribute__((target("avx2"))) static inline __m256i weighed(
    __m256i pairs, __m256i high, __m256i low) {
    __m256i sum = _mm256_slli_epi32(_mm256_madd_epi16(pairs, high), LOW);
    sum = _mm256_add_epi32(sum, _mm256_madd_epi16(pairs, low));
    return _mm256_srli_epi32(_mm256_add_epi32(sum, _mm256_set1_epi32(1 << 23)), 24);
}

__attribute__((target("avx2"))) static inline __m256i wider(const uint8_t *bytes) {
    return _mm256_cvtepu8_epi16(_mm_loadu_si128((const void *)bytes));
}

/* The same, with sums of 16 bits; the bytes that were done. */
__attribute__((target("avx2"))) static int box_row_avx2(
    const struct box *box, const uint8_t *before, const uint8_t *last, const uint8_t *after,
    int bytes, int16_t *sums, uint8_t *out) {
    const int low = (1 << LOW) - 1;
    const __m256i h = _mm256_set1_epi32(box->inner >> LOW | box->outer >> LOW << 16);
    const __m256i l = _mm256_set1_epi32((box->inner & low) | (box->outer & low) << 16);
    int x = 0;
    for (; x + 16 <= bytes; x += 16) {
        __m256i first = wider(before + x), ends = _mm256_add_epi16(first, wider(after + x));
        __m256i sum = _mm256_loadu_si256((const void *)(sums + x));
        sum = _mm256_add_epi16(sum, _mm256_sub_epi16(wider(last + x), first));
        _mm256_storeu_si256((void *)(sums + x), sum);
        __m256i made = _mm256_packs_epi32(
            weighed(_mm256_unpacklo_epi16(sum, ends), h, l),
            weighed(_mm256_unpackhi_epi16(sum, ends), h, l));
        __m128i packed = _mm_packus_epi16(
            _mm256_castsi256_si128(made), _mm256_extracti128_si256(made, 1));
        _mm_storeu_si128((void *)(out + x), packed);
    }
    return x;
}
#else
#define box_row_avx2(...) 0
#endif

/* One pass along columns, of `bytes` a row; room for as many sums of each kind. */
static void box_pass(
    const uint8_t *in, int bytes, int height, const struct box *box, int32_t *sums,
    int16_t *short_sums, uint8_t *out) {
    int radius = box->radius, wide = has_avx2() && (2 * radius + 1) * 255 <= INT16_MAX;
    memset(sums, 0, bytes * sizeof *sums);
    for (int y = -radius - 1; y < radius; y++) { /* around the row before the first */
        const uint8_t *row = in + (size_t)within(y, height) * bytes;
        for (int x = 0; x < bytes; x++) {
            sums[x] += row[x];
        }
    }
    for (int x = 0; x < bytes; x++) {
        short_sums[x] = sums[x];
    }
    for (int y = 0; y < height; y++) {
        const uint8_t *before = in + (size_t)within(y - radius - 1, height) * bytes;
        const uint8_t *last = in + (size_t)within(y + radius, height) * bytes;
        const uint8_t *after = in + (size_t)within(y + radius + 1, height) * bytes;
        uint8_t *to = out + (size_t)y * bytes;
        int x = wide ? box_row_avx2(box, before, last, after, bytes, short_sums, to) : 0;
        box_row(box, before, last, after, x, bytes, sums, to);
    }
}

static void turned(const pixel *in, int width, int height, pixel *out) {
    for (int y = 0; y < height; y++) {
        for (int x = 0; x < width; x++) {
            memcpy(out[(size_t)x * height + y], in[(size_t)y * width + x], sizeof(pixel));
        }
    }
}

enum verdict blur(pixel *image, int width, int height, float sigma) {
    struct box box = box_of(box_radius(sigma));
    size_t bytes = (size_t)width * height * sizeof(pixel);
    int longest = width > height ? width : height;
    uint8_t *one = calloc(2, bytes), *two = one + bytes;
    int32_t *sums = malloc((size_t)longest * sizeof(pixel) * sizeof *sums);
    int16_t *shorts = malloc((size_t)longest * sizeof(pixel) * sizeof *shorts);
    if (one == NULL || sums == NULL || shorts == NULL) {
        free(one);
        free(sums);
        free(shorts);
        return NO_MEMORY;
    }
    turned((const pixel *)image, width, height, (pixel *)one); /* rows first */
    for (int side = 0; side < 2; side++) {
        int along = side ? height : width, across = (side ? width : height) * sizeof(pixel);
        box_pass(one, across, along, &box, sums, shorts, two);
        box_pass(two, across, along, &box, sums, shorts, one);
        box_pass(one, across, along, &box, sums, shorts, two);
        if (side == 0) {
            turned((const pixel *)two, height, width, (pixel *)one);
        }
    }
    memcpy(image, two, bytes);
    free(one);
    free(sums);
    free(shorts);
    return FINE;
}

/* A pixel as a number, of which loops over many are made wide by the compiler. */
_Static_assert(__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "red is the lowest byte");

static inline uint32_t number(const pixel *image, size_t i) {
    uint32_t found;
    memcpy(&found, image[i], sizeof found);
    return found;
}

static inline int gray_of(uint32_t p) {
    return ((p & 255) * 19595 + (p >> 8 & 255) * 38470 + (p >> 16 & 255) * 7471 + 0x8000) >> 16;
}

WIDE void gray(pixel *image, size_t count) {
    for (size_t i = 0; i < count; i++) {
        uint32_t same = gray_of(number(image, i)) * 0x010101u;
        memcpy(image[i], &same, sizeof same);
    }
}

WIDE void solarize(pixel *image, size_t count, int threshold) {
    uint8_t *bytes = *image;
    for (size_t i = 0; i < count * sizeof(pixel); i++) {
        bytes[i] = bytes[i] < threshold ? bytes[i] : 255 - bytes[i];
    }
}

WIDE uint64_t lightness(const pixel *image, size_t count) {
    uint64_t sum = 0;
    for (size_t i = 0; i < count; i++) {
        sum += gray_of(number(image, i));
    }
    return sum;
}

/* Between two values, or beyond the second. */
static inline int blended(int from, int to, float factor) {
    float value = from + factor * (to - from);
    value = value < 0 ? 0 : value;
    return value > 255 ? 255 : (int)value;
}

void towards(pixel *image, size_t count, int value, float factor) {
    uint8_t table[256], *bytes = *image;
    for (int i = 0; i < 256; i++) {
        table[i] = blended(value, i, factor);
    }
    for (size_t i = 0; i < count * sizeof(pixel); i++) {
        bytes[i] = table[bytes[i]];
    }
}

WIDE void towards_gray(pixel *image, size_t count, float factor) {
    for (size_t i = 0; i < count; i++) {
        uint32_t p = number(image, i);
        int value = gray_of(p);
        uint32_t red = blended(value, p & 255, factor), blue = blended(value, p >> 16 & 255, factor);
        uint32_t made = red | (uint32_t)blended(value, p >> 8 & 255, factor) << 8 | blue << 16;
        memcpy(image[i], &made, sizeof made);
    }
}

/* Hue as a byte, of a pixel whose colours are not all the same; floats as Pillow rounds them. */
static inline uint8_t hue(int red, int green, int blue, int most, int range) {
    float r = (float)(most - red) / range, g = (float)(most - green) / range;
    float b = (float)(most - blue) / range, h;
    if (red == most) {
        h = b - g;
    } else if (green == most) {
        h = 2.0 + r - b;
    } else {
        h = 4.0 + g - r;
    }
    double around = h / 6.0 + 1.0;
    h = around < 1.0 ? around : around - 1.0;
    return (int)(h * 255.0);
}

static inline uint8_t nearest(double value) {
    return (int)(value + 0.5);
}

void turn(pixel *image, size_t count, int by) {
    int sector[256];
    float within[256]; /* a hue's sixth of the circle, and where in it */
    for (int h = 0; h < 256; h++) {
        double at = (float)h * 6.0 / 255.0;
        sector[h] = (int)at, within[h] = at - (int)at;
    }
    for (size_t i = 0; i < count; i++) {
        uint8_t *p = image[i];
        int red = p[0], green = p[1], blue = p[2];
        int most = red > green ? red : green, least = red < green ? red : green;
        most = blue > most ? blue : most, least = blue < least ? blue : least;
        if (most == least) {
            continue;
        }
        uint8_t turned = hue(red, green, blue, most, most - least) + by;
        float full = (float)((int)((float)(most - least) / most * 255.0)) / 255.0;
        float f = within[turned];
        uint8_t low = nearest(most * (1.0 - full)), falling = nearest(most * (1.0 - full * f));
        uint8_t rising = nearest(most * (1.0 - full * (1.0 - f)));
        switch (sector[turned] % 6) {
        case 0: p[0] = most, p[1] = rising, p[2] = low; break;
        case 1: p[0] = falling, p[1] = most, p[2] = low; break;
        case 2: p[0] = low, p[1] = most, p[2] = rising; break;
        case 3: p[0] = low, p[1] = falling, p[2] = most; break;
        case 4: p[0] = rising, p[1] = low, p[2] = most; break;
        default: p[0] = most, p[1] = low, p[2] = falling;
        }
    }
}

WIDE void planes(const pixel *image, int width, int height, int flipped, uint8_t *out) {
    size_t count = (size_t)width * height;
    for (int y = 0; y < height; y++) {
        const pixel *row = image + (size_t)y * width;
        uint8_t *to = out + (size_t)y * width;
        for (int channel = 0; channel < 3; channel++, to += count) {
            if (flipped) {
                for (int x = 0; x < width; x++) {
                    to[x] = row[width - 1 - x][channel];
                }
            } else {
                for (int x = 0; x < width; x++) {
                    to[x] = row[x][channel];
                }
            }
        }
    }
}
