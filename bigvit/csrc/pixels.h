/* Pixels of photographs, as Pillow makes them, in a fraction of its time.
 *
 * An image is rows of pixels of four bytes: red, green, blue and one that nobody reads. Everything
 * here gives Pillow's bytes: its arithmetic is of integers, whose sums hold in any order, or of
 * floats in Pillow's order.
 */

#ifndef BIGVIT_PIXELS_H
#define BIGVIT_PIXELS_H

#include <stddef.h>
#include <stdint.h>

/* Compiled twice, for any processor and for one with AVX2; chosen when it is loaded. */
#if defined(__x86_64__) && defined(__GLIBC__) && defined(__GNUC__) && !defined(__clang__)
#define WIDE __attribute__((target_clones("avx2", "default")))
#else
#define WIDE
#endif

typedef uint8_t pixel[4];

enum verdict { FINE, UNUSUAL, NO_MEMORY };

/* How one line is resized: output i is a weighted sum of `counts[i]` inputs from `starts[i]` on. */
struct line {
    int first, last; /* outputs wanted: from `first` to before `last` */
    int taps;        /* weights an output, a multiple of TAPS; those beyond `counts` are 0 */
    int *starts, *counts;
    int16_t *high; /* (last - first, taps) weights in units of 2^-14, rounded down, ... */
    int16_t *low;  /* ... and the rest of each, in units of 2^-22, 0 to 255 */
    int steps;     /* how often TAPS inputs are taken, for any output */
    void *spread;  /* both parts of the weights, as wide instructions take them */
};

#define TAPS 4

/* Outputs are spread over the inputs from `start` to `stop`, which may be within a pixel. */
enum verdict line_make(
    struct line *line, int inputs, double start, double stop, int outputs, int first, int last,
    int bicubic);
void line_free(struct line *line);

/* The first input that a line needs, and the one after the last. */
void line_reach(const struct line *line, int *start, int *stop);

/* Two rows of pixels, of which the first is input `offset`, to the wanted pixels; both may be one.
 * More are read after the last, by weights of 0: line_slack of them. */
void resize_two(const struct line *line, const pixel *const in[2], int offset, pixel *const out[2]);
int line_slack(const struct line *line);

/* Rows of `width` pixels, of which the first is input `offset`, to the wanted rows. */
void resize_rows(const struct line *line, const pixel *in, int offset, int width, pixel *out);

/* Whether the processor has AVX2, and it is to be used. */
int has_avx2(void);
void do_plainly(int yes);

/* Size of a JPEG whose header is nothing out of the ordinary. */
enum verdict jpeg_size(const uint8_t *content, size_t length, int *width, int *height);

/* What is wanted of an image: a box of it, resized by two lines. */
struct part {
    int box[4];               /* left, top, width, height */
    struct line across, down; /* from the box to the pixels that are wanted */
    int down_first;           /* which line is done first */
    pixel *out;
    pixel *rows; /* while it is made: rows of the image, or what the first line made of them */
};

/* Decode a JPEG 1, 2, 4 or 8 times smaller, once and no more of it than its parts need, and write
 * these. UNUSUAL: whatever Pillow might see otherwise; nothing is said of any `out` then. */
enum verdict jpeg_resized(
    const uint8_t *content, size_t length, int shrink, struct part *parts, int count);

enum verdict blur(pixel *image, int width, int height, float sigma);
void gray(pixel *image, size_t count);
void solarize(pixel *image, size_t count, int threshold);
uint64_t lightness(const pixel *image, size_t count); /* sum of all pixels' L */
void towards(pixel *image, size_t count, int value, float factor);
void towards_gray(pixel *image, size_t count, float factor);
void turn(pixel *image, size_t count, int by); /* of the hue, in 256ths of the circle */
void planes(const pixel *image, int width, int height, int flipped, uint8_t *out);

#endif
