/* Blur, gray, solarizing and colour jitter, as Pillow's GaussianBlur, convert("L"), solarize and
 * ImageEnhance. */

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

/* One pass of a box along columns, of `bytes` a row. */
WIDE static void box_pass(
    const uint8_t *in, int bytes, int height, float width, uint32_t *sums, uint8_t *out) {
    int radius = (int)width;
    uint32_t inner = (uint32_t)((float)(1 << 24) / (width * 2 + 1));
    uint32_t outer = ((1 << 24) - (radius * 2 + 1) * inner) / 2;
    memset(sums, 0, bytes * sizeof *sums);
    for (int y = -radius - 1; y < radius; y++) { /* around the row before the first */
        const uint8_t *row = in + (size_t)within(y, height) * bytes;
        for (int x = 0; x < bytes; x++) {
            sums[x] += row[x];
        }
    }
    for (int y = 0; y < height; y++) {
        const uint8_t *before = in + (size_t)within(y - radius - 1, height) * bytes;
        const uint8_t *last = in + (size_t)within(y + radius, height) * bytes;
        const uint8_t *after = in + (size_t)within(y + radius + 1, height) * bytes;
        uint8_t *to = out + (size_t)y * bytes;
        for (int x = 0; x < bytes; x++) {
            sums[x] += last[x] - before[x];
            to[x] = (sums[x] * inner + (before[x] + after[x]) * outer + (1 << 23)) >> 24;
        }
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
    float radius = box_radius(sigma);
    size_t bytes = (size_t)width * height * sizeof(pixel);
    int longest = width > height ? width : height;
    uint8_t *one = calloc(2, bytes), *two = one + bytes;
    uint32_t *sums = malloc((size_t)longest * sizeof(pixel) * sizeof *sums);
    if (one == NULL || sums == NULL) {
        free(one);
        free(sums);
        return NO_MEMORY;
    }
    turned((const pixel *)image, width, height, (pixel *)one); /* rows first */
    for (int side = 0; side < 2; side++) {
        int along = side ? height : width, across = (side ? width : height) * sizeof(pixel);
        box_pass(one, across, along, radius, sums, two);
        box_pass(two, across, along, radius, sums, one);
        box_pass(one, across, along, radius, sums, two);
        if (side == 0) {
            turned((const pixel *)two, height, width, (pixel *)one);
        }
    }
    memcpy(image, two, bytes);
    free(one);
    free(sums);
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
