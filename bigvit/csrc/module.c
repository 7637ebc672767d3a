/* bigvit.data._pixels: images are writable buffers of height x width x 4 bytes. */

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include "pixels.h"

#include <math.h>

/* An image's sides, if a buffer holds one of them. */
static int is_image(const Py_buffer *buffer, int width, int height) {
    if (width > 0 && height > 0 && buffer->len == (Py_ssize_t)width * height * 4) {
        return 1;
    }
    PyErr_Format(PyExc_ValueError, "%zd bytes are no %d x %d pixels", buffer->len, width, height);
    return 0;
}

static PyObject *answer(enum verdict verdict) {
    return verdict == NO_MEMORY ? PyErr_NoMemory() : PyBool_FromLong(verdict == FINE);
}

static PyObject *py_size(PyObject *module, PyObject *arguments) {
    Py_buffer content;
    int width, height;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*", &content)) {
        return NULL;
    }
    enum verdict verdict = jpeg_size(content.buf, content.len, &width, &height);
    PyBuffer_Release(&content);
    if (verdict != FINE) {
        Py_RETURN_NONE;
    }
    return Py_BuildValue("(ii)", width, height);
}

/* Read what is wanted of an image that is decoded `shrink` times smaller, and make its lines. */
static int make_part(PyObject *wanted, int shrink, struct part *part, Py_buffer *out) {
    int box[4], size[2], window[4], bicubic;
    if (!PyArg_ParseTuple(
            wanted, "(iiii)(ii)(iiii)ppw*", &box[0], &box[1], &box[2], &box[3], &size[0], &size[1],
            &window[0], &window[1], &window[2], &window[3], &bicubic, &part->down_first, out)) {
        return 0;
    }
    if (box[0] < 0 || box[1] < 0 || box[2] <= 0 || box[3] <= 0 || window[0] < 0 || window[1] < 0
        || window[2] > size[0] || window[3] > size[1]) {
        PyErr_SetString(PyExc_ValueError, "the box or the window lies outside");
        return 0;
    }
    if (!is_image(out, window[2] - window[0], window[3] - window[1])) {
        return 0;
    }
    part->out = out->buf;
    struct line *lines[2] = {&part->across, &part->down};
    for (int i = 0; i < 2; i++) { /* whole pixels of the smaller image */
        double first = (double)box[i] / shrink, last = first + (double)box[i + 2] / shrink;
        int start = (int)first, length = (int)ceil(last) - start;
        part->box[i] = start, part->box[i + 2] = length;
        if (line_make(
                lines[i], length, first - start, last - start, size[i], window[i], window[i + 2],
                bicubic)
            != FINE) {
            PyErr_NoMemory();
            return 0;
        }
    }
    return 1;
}

static PyObject *py_resized(PyObject *module, PyObject *arguments) {
    Py_buffer content;
    PyObject *wanted;
    int shrink, made = 0;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*iO!", &content, &shrink, &PyTuple_Type, &wanted)) {
        return NULL;
    }
    Py_ssize_t count = PyTuple_GET_SIZE(wanted);
    struct part *parts = PyMem_Calloc(count, sizeof *parts);
    Py_buffer *outs = PyMem_Calloc(count, sizeof *outs);
    enum verdict verdict = NO_MEMORY;
    if (parts == NULL || outs == NULL) {
        PyErr_NoMemory();
    } else if (shrink != 1 && shrink != 2 && shrink != 4 && shrink != 8) {
        PyErr_Format(PyExc_ValueError, "nothing is decoded %d times smaller", shrink);
    } else {
        while (made < count
               && make_part(PyTuple_GET_ITEM(wanted, made), shrink, &parts[made], &outs[made])) {
            made++;
        }
    }
    if (!PyErr_Occurred()) {
        Py_BEGIN_ALLOW_THREADS
        verdict = jpeg_resized(content.buf, content.len, shrink, parts, (int)count);
        Py_END_ALLOW_THREADS
    }
    for (Py_ssize_t i = 0; parts != NULL && outs != NULL && i < count; i++) {
        line_free(&parts[i].across);
        line_free(&parts[i].down);
        if (outs[i].obj != NULL) {
            PyBuffer_Release(&outs[i]);
        }
    }
    PyMem_Free(parts);
    PyMem_Free(outs);
    PyBuffer_Release(&content);
    return PyErr_Occurred() ? NULL : answer(verdict);
}

static PyObject *py_blur(PyObject *module, PyObject *arguments) {
    Py_buffer image;
    int width, height;
    float sigma;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "w*iif", &image, &width, &height, &sigma)) {
        return NULL;
    }
    enum verdict verdict = NO_MEMORY;
    if (is_image(&image, width, height)) {
        verdict = blur(image.buf, width, height, sigma);
    }
    PyBuffer_Release(&image);
    return PyErr_Occurred() ? NULL : answer(verdict);
}

static PyObject *py_gray(PyObject *module, PyObject *arguments) {
    Py_buffer image;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "w*", &image)) {
        return NULL;
    }
    gray(image.buf, image.len / 4);
    PyBuffer_Release(&image);
    Py_RETURN_NONE;
}

static PyObject *py_solarize(PyObject *module, PyObject *arguments) {
    Py_buffer image;
    int threshold;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "w*i", &image, &threshold)) {
        return NULL;
    }
    solarize(image.buf, image.len / 4, threshold);
    PyBuffer_Release(&image);
    Py_RETURN_NONE;
}

static PyObject *py_lightness(PyObject *module, PyObject *arguments) {
    Py_buffer image;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*", &image)) {
        return NULL;
    }
    uint64_t sum = lightness(image.buf, image.len / 4);
    PyBuffer_Release(&image);
    return PyLong_FromUnsignedLongLong(sum);
}

static PyObject *py_towards(PyObject *module, PyObject *arguments) {
    Py_buffer image;
    int value;
    float factor;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "w*if", &image, &value, &factor)) {
        return NULL;
    }
    towards(image.buf, image.len / 4, value, factor);
    PyBuffer_Release(&image);
    Py_RETURN_NONE;
}

static PyObject *py_towards_gray(PyObject *module, PyObject *arguments) {
    Py_buffer image;
    float factor;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "w*f", &image, &factor)) {
        return NULL;
    }
    towards_gray(image.buf, image.len / 4, factor);
    PyBuffer_Release(&image);
    Py_RETURN_NONE;
}

static PyObject *py_turn(PyObject *module, PyObject *arguments) {
    Py_buffer image;
    int by;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "w*i", &image, &by)) {
        return NULL;
    }
    turn(image.buf, image.len / 4, by);
    PyBuffer_Release(&image);
    Py_RETURN_NONE;
}

static PyObject *py_planes(PyObject *module, PyObject *arguments) {
    Py_buffer image, out;
    int width, height, flipped;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "y*iipw*", &image, &width, &height, &flipped, &out)) {
        return NULL;
    }
    if (is_image(&image, width, height)) {
        if (out.len == image.len / 4 * 3) {
            planes(image.buf, width, height, flipped, out.buf);
        } else {
            PyErr_SetString(PyExc_ValueError, "the planes are of another size");
        }
    }
    PyBuffer_Release(&image);
    PyBuffer_Release(&out);
    if (PyErr_Occurred()) {
        return NULL;
    }
    Py_RETURN_NONE;
}

static PyObject *py_plainly(PyObject *module, PyObject *arguments) {
    int yes;
    (void)module;
    if (!PyArg_ParseTuple(arguments, "p", &yes)) {
        return NULL;
    }
    do_plainly(yes);
    Py_RETURN_NONE;
}

static PyMethodDef methods[] = {
    {"size", py_size, METH_VARARGS,
     "(width, height) of a JPEG, None if its header is out of the ordinary."},
    {"resized", py_resized, METH_VARARGS,
     "Whether windows of boxes of a JPEG, resized, were written; if not, Pillow is to be asked."},
    {"blur", py_blur, METH_VARARGS, "Gaussian blur of a deviation in pixels, in place."},
    {"gray", py_gray, METH_VARARGS, "To shades of gray, in place."},
    {"solarize", py_solarize, METH_VARARGS, "Invert values from a threshold on, in place."},
    {"lightness", py_lightness, METH_VARARGS, "Sum of the L of all pixels."},
    {"towards", py_towards, METH_VARARGS, "From a value by a factor, in place."},
    {"towards_gray", py_towards_gray, METH_VARARGS, "From each pixel's gray by a factor."},
    {"turn", py_turn, METH_VARARGS, "Turn hues by so many 256ths of the circle, in place."},
    {"planes", py_planes, METH_VARARGS, "Red, green and blue apart, mirrored if wanted."},
    {"plainly", py_plainly, METH_VARARGS, "Whether to do without a processor's wide instructions."},
    {NULL, NULL, 0, NULL},
};

static struct PyModuleDef definition = {
    .m_base = PyModuleDef_HEAD_INIT, .m_name = "_pixels", .m_size = 0, .m_methods = methods,
};

PyMODINIT_FUNC PyInit__pixels(void) {
    return PyModule_Create(&definition);
}
