/* Regions of JPEGs, by libjpeg-turbo: what lies outside of a region's rows and columns is decoded
 * to coefficients (each needs the one before it), and no further.
 *
 * A file is either nothing out of the ordinary and gives the pixels that Pillow gives, or it is
 * UNUSUAL, and left to Pillow, who thereby judges every file with a fault. So that both agree on
 * what is a fault, the part after the region is looked at, too.
 */

#include "pixels.h"

#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jpeglib.h>

#define MARGIN 2           /* pixels around a region from which its colours are interpolated */
#define LARGEST (89478485) /* pixels from which on Pillow warns */

struct errors {
    struct jpeg_error_mgr base;
    jmp_buf back;
};

static void give_up(j_common_ptr common) {
    longjmp(((struct errors *)common->err)->back, 1);
}

/* Warnings, which Pillow passes over, are about data that are wrong. */
static void on_message(j_common_ptr common, int level) {
    if (level < 0) {
        give_up(common);
    }
}

static void nothing(j_decompress_ptr jpeg) {
    (void)jpeg;
}

static boolean at_end(j_decompress_ptr jpeg) {
    give_up((j_common_ptr)jpeg);
    return FALSE;
}

static void skip(j_decompress_ptr jpeg, long count) {
    if (count > (long)jpeg->src->bytes_in_buffer) {
        give_up((j_common_ptr)jpeg);
    }
    if (count > 0) {
        jpeg->src->next_input_byte += count;
        jpeg->src->bytes_in_buffer -= count;
    }
}

/* What Pillow reads of headers and may stumble over: it shall have a look at anything but the usual
 * first segment, Adobe's transform and a colour profile. */
static int plain(const uint8_t *content, size_t length, int *width, int *height) {
    size_t at = 2;
    int found = 0;
    if (length < 4 || content[0] != 0xff || content[1] != 0xd8) {
        return 0;
    }
    while (at + 4 <= length && content[at] == 0xff) {
        const uint8_t *body = content + at + 4;
        int marker = content[at + 1], size = (content[at + 2] << 8 | content[at + 3]) - 2;
        if (size < 0 || at + 4 + size > length) {
            return 0;
        }
        switch (marker) {
        case 0xe0: /* APP0 */
            if (size < 14 || memcmp(body, "JFIF", 5)) {
                return 0;
            }
            break;
        case 0xe2: /* APP2 */
            if (size < 14 || memcmp(body, "ICC_PROFILE", 12)) {
                return 0;
            }
            break;
        case 0xee: /* APP14 */
            if (size < 12 || memcmp(body, "Adobe", 5)) {
                return 0;
            }
            break;
        case 0xc0: /* frames: baseline, extended, progressive */
        case 0xc1:
        case 0xc2:
            if (found || size < 6 || body[0] != 8 || (body[5] != 1 && body[5] != 3)) {
                return 0;
            }
            *height = body[1] << 8 | body[2];
            *width = body[3] << 8 | body[4];
            found = *width > 0 && *height > 0 && (int64_t)*width * *height <= LARGEST;
            break;
        case 0xda: /* scan */
            return found;
        case 0xc4: /* tables */
        case 0xdb:
        case 0xdd:
        case 0xfe: /* comment */
            break;
        default:
            return 0;
        }
        at += 4 + size;
    }
    return 0;
}

enum verdict jpeg_size(const uint8_t *content, size_t length, int *width, int *height) {
    return plain(content, length, width, height) ? FINE : UNUSUAL;
}

/* Whether colours are sampled in a way whose regions are known to be exact. */
static int usual(const struct jpeg_decompress_struct *jpeg) {
    const jpeg_component_info *each = jpeg->comp_info;
    if (jpeg->data_precision != 8 || jpeg->arith_code) {
        return 0;
    }
    if (jpeg->num_components == 1) {
        return jpeg->jpeg_color_space == JCS_GRAYSCALE;
    }
    int colours = jpeg->jpeg_color_space;
    return jpeg->num_components == 3 && (colours == JCS_YCbCr || colours == JCS_RGB)
        && each[0].h_samp_factor <= 2 && each[0].v_samp_factor <= 2 && each[1].h_samp_factor == 1
        && each[1].v_samp_factor == 1 && each[2].h_samp_factor == 1 && each[2].v_samp_factor == 1;
}

/* Whether every scan of a progressive file is there to the last bit; else its blocks are smoothed,
 * by their neighbours. */
static int complete(const struct jpeg_decompress_struct *jpeg) {
    if (!jpeg->progressive_mode) {
        return 1;
    }
    for (int i = 0; i < jpeg->num_components; i++) {
        for (int k = 0; k < 64; k++) {
            if (jpeg->coef_bits == NULL || jpeg->coef_bits[i][k] != 0) {
                return 0;
            }
        }
    }
    return 1;
}

/* Whether the next marker of a scan is the end of the image: then whatever bits come before it,
 * decoding them gives no error, and does not run out of data. */
static int ends(const struct jpeg_decompress_struct *jpeg) {
    const uint8_t *at = jpeg->src->next_input_byte, *end = at + jpeg->src->bytes_in_buffer;
    if (jpeg->unread_marker != 0) {
        return jpeg->unread_marker == JPEG_EOI;
    }
    while (at < end && (at = memchr(at, 0xff, end - at)) != NULL) {
        while (at < end && *at == 0xff) {
            at++;
        }
        if (at < end && *at++ != 0) {
            return at[-1] == JPEG_EOI;
        }
    }
    return 0;
}

/* Columns of the image that a part needs, and its rows. */
struct region {
    int left, right, top, bottom;
};

static struct region region_of(const struct part *part) {
    struct region it;
    line_reach(&part->across, &it.left, &it.right);
    line_reach(&part->down, &it.top, &it.bottom);
    it.left += part->box[0], it.right += part->box[0];
    it.top += part->box[1], it.bottom += part->box[1];
    return it;
}

/* Pixels of a row that a part keeps until all of its rows are there. */
static int kept(const struct part *part) {
    struct region it = region_of(part);
    return part->down_first ? it.right - it.left + line_slack(&part->across)
                            : part->across.last - part->across.first;
}

/* Take row `y` of the image, of which the row before is there, too; rows begin at column `first`. */
static void take(
    const struct part *part, int y, const pixel *before, const pixel *row, int first) {
    struct region it = region_of(part);
    int place = y - it.top, odd = place & 1, width = kept(part);
    if (y < it.top || y >= it.bottom) {
        return;
    }
    pixel *to = part->rows + (size_t)place * width;
    if (part->down_first) {
        memcpy(to, row + (it.left - first), width * sizeof(pixel));
    } else if (odd || y == it.bottom - 1) {
        const pixel *const in[2] = {odd ? before : row, row};
        pixel *const out[2] = {odd ? to - width : to, to};
        resize_two(&part->across, in, first - part->box[0], out);
    }
}

/* Make a part of its rows. */
static enum verdict finish(const struct part *part) {
    struct region it = region_of(part);
    int wide = kept(part), width = part->across.last - part->across.first;
    int high = part->down.last - part->down.first, above = it.top - part->box[1];
    if (!part->down_first) {
        resize_rows(&part->down, part->rows, above, width, part->out);
        return FINE;
    }
    pixel *low = malloc((size_t)high * wide * sizeof(pixel));
    if (low == NULL) {
        return NO_MEMORY;
    }
    resize_rows(&part->down, part->rows, above, wide, low);
    for (int y = 0; y < high; y += 2) {
        int next = y + 1 < high ? y + 1 : y;
        const pixel *const from[2] = {low + (size_t)y * wide, low + (size_t)next * wide};
        pixel *const to[2] = {part->out + (size_t)y * width, part->out + (size_t)next * width};
        resize_two(&part->across, from, it.left - part->box[0], to);
    }
    free(low);
    return FINE;
}

/* All that parts need, and the most that is read beyond a row; 0 where one lies outside. */
static int together(
    const struct part *parts, int count, int width, int height, struct region *all, int *slack) {
    for (int i = 0; i < count; i++) {
        struct region it = region_of(&parts[i]);
        const int *box = parts[i].box;
        int beyond = line_slack(&parts[i].across);
        if (box[0] + box[2] > width || box[1] + box[3] > height) {
            return 0;
        }
        all->left = i == 0 || it.left < all->left ? it.left : all->left;
        all->right = i == 0 || it.right > all->right ? it.right : all->right;
        all->top = i == 0 || it.top < all->top ? it.top : all->top;
        all->bottom = i == 0 || it.bottom > all->bottom ? it.bottom : all->bottom;
        *slack = i == 0 || beyond > *slack ? beyond : *slack;
    }
    return count > 0;
}

enum verdict jpeg_resized(
    const uint8_t *content, size_t length, int shrink, struct part *parts, int count) {
    struct jpeg_decompress_struct jpeg;
    struct jpeg_source_mgr source = {0};
    struct errors errors;
    pixel *volatile row = NULL;
    volatile enum verdict verdict = UNUSUAL;

    for (int i = 0; i < count; i++) {
        parts[i].rows = NULL;
    }
    jpeg.err = jpeg_std_error(&errors.base);
    errors.base.error_exit = give_up;
    errors.base.emit_message = on_message;
    if (setjmp(errors.back)) {
        goto done;
    }
    jpeg_create_decompress(&jpeg);
    source.init_source = nothing;
    source.fill_input_buffer = at_end;
    source.skip_input_data = skip;
    source.resync_to_restart = jpeg_resync_to_restart;
    source.term_source = nothing;
    source.next_input_byte = content;
    source.bytes_in_buffer = length;
    jpeg.src = &source;
    if (jpeg_read_header(&jpeg, TRUE) != JPEG_HEADER_OK || !usual(&jpeg)) {
        goto done;
    }
    jpeg.out_color_space = JCS_EXT_RGBX;
    jpeg.scale_num = 1, jpeg.scale_denom = shrink;
    jpeg_start_decompress(&jpeg);
    struct region all;
    int slack;
    if (!complete(&jpeg)
        || !together(parts, count, jpeg.output_width, jpeg.output_height, &all, &slack)) {
        goto done;
    }
    JDIMENSION first = all.left < MARGIN ? 0 : all.left - MARGIN;
    JDIMENSION columns = all.right + MARGIN - first;
    if (columns > jpeg.output_width - first) {
        columns = jpeg.output_width - first;
    }
    if (first > 0 || columns < jpeg.output_width) {
        jpeg_crop_scanline(&jpeg, &first, &columns);
    }
    size_t wide = jpeg.output_width + slack;
    row = calloc(2 * wide, sizeof(pixel)); /* the last two */
    verdict = row == NULL ? NO_MEMORY : UNUSUAL;
    for (int i = 0; i < count; i++) {
        struct region it = region_of(&parts[i]);
        parts[i].rows = malloc((size_t)(it.bottom - it.top) * kept(&parts[i]) * sizeof(pixel));
        verdict = parts[i].rows == NULL ? NO_MEMORY : verdict;
    }
    if (verdict == NO_MEMORY) {
        goto done;
    }
    if (all.top > MARGIN) {
        jpeg_skip_scanlines(&jpeg, all.top - MARGIN);
    }
    while ((int)jpeg.output_scanline < all.bottom) {
        int y = (int)jpeg.output_scanline, odd = y & 1;
        JSAMPROW line = (JSAMPROW)(row + odd * wide);
        jpeg_read_scanlines(&jpeg, &line, 1);
        for (int i = 0; i < count; i++) {
            take(&parts[i], y, row + !odd * wide, row + odd * wide, (int)first);
        }
    }
    if (jpeg_has_multiple_scans(&jpeg)) {
        verdict = FINE; /* it was read to its end before */
    } else if (jpeg.restart_interval == 0) {
        verdict = ends(&jpeg) ? FINE : UNUSUAL;
    } else {
        if (jpeg.output_scanline + 1 < jpeg.output_height) { /* not all: that would decode nothing */
            jpeg_skip_scanlines(&jpeg, jpeg.output_height - 1 - jpeg.output_scanline);
        }
        if (jpeg.output_scanline < jpeg.output_height) {
            JSAMPROW line = (JSAMPROW)row;
            jpeg_read_scanlines(&jpeg, &line, 1);
        }
        jpeg_finish_decompress(&jpeg);
        verdict = FINE;
    }
    for (int i = 0; i < count && verdict == FINE; i++) {
        verdict = finish(&parts[i]);
    }
done:
    jpeg_destroy_decompress(&jpeg);
    for (int i = 0; i < count; i++) {
        free(parts[i].rows);
    }
    free(row);
    return verdict;
}
