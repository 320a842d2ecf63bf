/* py_bulk.c - many objects in one call: addresses leave and enter as buffers of 64-bit words. */
#include "python/py_unislab.h"

#include <string.h>

_Static_assert(sizeof(void *) == sizeof(uint64_t), "addresses are 64-bit words");

/* Above this many objects the GIL is dropped; the tests read it as _GIL_MINIMUM. */
#define GIL_MINIMUM 256

static size_t alloc_plain(struct us_cache *core, struct us_py_call *call, unsigned flags, int node,
                          size_t n, void **out)
{
    if (n < GIL_MINIMUM)
        return us_cache_alloc_bulk(core, flags, node, n, out);
    us_py_release(call);
    size_t got = us_cache_alloc_bulk(core, flags, node, n, out);
    us_py_acquire(call);
    return got;
}

/* As many as could be allocated and constructed; fewer than n with an exception. */
static size_t alloc_constructed(struct us_py_cache *self, unsigned flags, int node, size_t n,
                                void **out)
{
    size_t got = 0;
    while (got < n && (out[got] = us_py_alloc_constructed(self, flags, node)) != NULL)
        got++;
    return got;
}

/* Fills out[0..n), or frees what there is and raises. */
static bool fill(struct us_py_cache *self, struct us_py_call *call, unsigned flags, int node,
                 size_t n, void **out)
{
    bool constructs = self->record->constructor != NULL;
    size_t got = constructs ? alloc_constructed(self, flags, node, n, out)
                            : alloc_plain(self->core, call, flags, node, n, out);
    if (got == n)
        return true;
    if (!constructs)
        us_py_raise_failure(self->allocator->state, self->core, n, self->size);
    us_cache_free_bulk(self->core, got, out);
    return false;
}

/* Room for n addresses. More than fit into memory are more objects than do. */
static PyObject *room_for(struct us_py_cache *self, Py_ssize_t n, uint64_t **words)
{
    struct us_py_call call;
    PyObject *buffer = us_py_words(self->allocator->state, (size_t)n, words);
    if (buffer || !PyErr_ExceptionMatches(PyExc_MemoryError))
        return buffer;
    PyErr_Clear();
    struct us_cache *core = us_py_enter_cache(&call, self);
    if (core) {
        us_py_raise_failure(self->allocator->state, core, (size_t)n, self->size);
        us_py_leave(&call);
    }
    return NULL;
}

PyObject *us_py_cache_alloc_bulk(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames)
{
    struct us_py_cache *self = (struct us_py_cache *)op;
    struct us_py_state *state = self->allocator->state;
    struct us_py_call call;
    Py_ssize_t n;
    unsigned flags;
    int node;
    uint64_t *words;
    if (nargs != 1) {
        PyErr_Format(PyExc_TypeError, "alloc_bulk() takes the number of objects (%zd given)",
                     nargs);
        return NULL;
    }
    if (!us_py_count(args[0], "number of objects", 0, PY_SSIZE_T_MAX / 64, &n))
        return NULL;
    PyObject *buffer = room_for(self, n, &words);
    if (!buffer)
        return NULL;
    struct us_cache *core = us_py_enter_cache(&call, self);
    if (!core) {
        Py_DECREF(buffer);
        return NULL;
    }
    PyObject *array = NULL;
    if (us_py_hands_out(self) &&
        us_py_placement("alloc_bulk", args + nargs, kwnames, core->machine, &flags, &node) &&
        fill(self, &call, flags, node, (size_t)n, (void **)words)) {
        array = us_py_array(state, buffer);
        if (!array)
            us_cache_free_bulk(core, (size_t)n, (void *const *)words);
    }
    us_py_leave(&call);
    Py_DECREF(buffer);
    return array;
}

/* ---- free ------------------------------------------------------------------------------------ */

/* Native 8-byte integers; the request made them C-contiguous. */
static bool is_addresses(const Py_buffer *view)
{
    const char *format = view->format ? view->format : "B";
    if (*format == '@' || *format == '=' ||
        *format == (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__ ? '<' : '>'))
        format++;
    return view->ndim > 0 && view->itemsize == 8 && *format && strchr("QqLlNn", *format) &&
           !format[1];
}

/* A view of the addresses in `value`: its own buffer, or that of an array made from it. */
static bool get_addresses(struct us_py_state *state, PyObject *value, Py_buffer *view)
{
    if (PyObject_CheckBuffer(value)) {
        if (PyObject_GetBuffer(value, view, PyBUF_ND | PyBUF_FORMAT) == 0) {
            if (is_addresses(view))
                return true;
            PyBuffer_Release(view);
        } else {
            PyErr_Clear(); /* not contiguous: copied below */
        }
    }
    PyObject *array = PyObject_CallOneArg(state->as_addresses, value);
    if (!array)
        return false;
    int result = PyObject_GetBuffer(array, view, PyBUF_ND | PyBUF_FORMAT);
    Py_DECREF(array);
    return result == 0;
}

PyObject *us_py_cache_free_bulk(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    struct us_py_cache *self = (struct us_py_cache *)op;
    struct us_py_state *state = self->allocator->state;
    struct us_py_call call;
    struct us_error error;
    Py_buffer view;
    if (nargs != 1) {
        PyErr_Format(PyExc_TypeError, "free_bulk() takes one array of addresses (%zd given)",
                     nargs);
        return NULL;
    }
    if (!get_addresses(state, args[0], &view))
        return NULL;
    struct us_cache *core = us_py_enter_cache(&call, self);
    if (!core) {
        PyBuffer_Release(&view);
        return NULL;
    }
    size_t n = (size_t)view.len / sizeof(uint64_t);
    bool release = n >= GIL_MINIMUM;
    if (release)
        us_py_release(&call);
    enum us_status status = us_cache_free_bulk_checked(core, n, view.buf, &error);
    if (release)
        us_py_acquire(&call);
    if (status != US_OK)
        us_py_raise_misuse(state, &error);
    us_py_leave(&call);
    PyBuffer_Release(&view);
    if (status != US_OK)
        return NULL;
    Py_RETURN_NONE;
}
