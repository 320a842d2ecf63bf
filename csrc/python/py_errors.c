/* py_errors.c - from error codes of the core to Python exceptions. */
#include "python/py_unislab.h"

#include <stdlib.h>
#include <string.h>

/* Raises type(text) with the given attributes ("name", object pairs, references stolen). */
static PyObject *raise_with(PyObject *type, const char *text, const char *const *names,
                            PyObject *const *values, size_t n)
{
    bool ok = true;
    if (!type) /* the module was torn down: the interpreter ends */
        type = PyExc_RuntimeError;
    PyObject *error = PyObject_CallFunction(type, "s", text);
    for (size_t i = 0; i < n; i++) {
        ok = ok && error && values[i] && PyObject_SetAttrString(error, names[i], values[i]) == 0;
        Py_XDECREF(values[i]);
    }
    if (ok)
        PyErr_SetObject(type, error);
    Py_XDECREF(error);
    return NULL;
}

static PyObject *raise_limit(struct us_py_state *state, const struct us_error *error)
{
    const char *names[] = {"requested", "limit"};
    PyObject *values[] = {PyLong_FromUnsignedLongLong(error->requested),
                          PyLong_FromUnsignedLongLong(error->limit)};
    return raise_with(state->limit_error, error->text, names, values, 2);
}

PyObject *us_py_raise(struct us_py_state *state, const struct us_error *error, PyObject *busy)
{
    PyObject *type = PyExc_RuntimeError;
    switch (error->status) {
    case US_OK:
        break;
    case US_EINVAL:
        type = PyExc_ValueError;
        break;
    case US_ENOMEM:
        if (error->limit)
            return raise_limit(state, error);
        type = PyExc_MemoryError;
        break;
    case US_EBUSY:
        type = busy ? busy : PyExc_RuntimeError;
        break;
    case US_ECORRUPT:
        return us_py_raise_misuse(state, error);
    case US_ENOSYS:
        type = PyExc_NotImplementedError;
        break;
    }
    PyErr_SetString(type, error->text);
    return NULL;
}

/* The part of an error's text after `key`, up to `end`; None when there is none. */
static PyObject *part(const char *text, const char *key, const char *end)
{
    const char *start = strstr(text, key);
    if (!start)
        Py_RETURN_NONE;
    start += strlen(key);
    const char *stop = strstr(start, end);
    return PyUnicode_DecodeUTF8(start, stop ? stop - start : (Py_ssize_t)strlen(start), "replace");
}

static PyObject *number_after(const char *text, const char *key)
{
    const char *start = strstr(text, key);
    uint64_t value = start ? strtoull(start + strlen(key), NULL, 0) : 0;
    if (!value)
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(value);
}

PyObject *us_py_raise_misuse(struct us_py_state *state, const struct us_error *error)
{
    const char *text = error->text;
    const char *names[] = {"cache", "slab", "address", "found", "expected"};
    PyObject *values[] = {
        part(text, "cache '", "'"),      number_after(text, "slab "),
        number_after(text, "object "),   part(text, "found ", ", expected "),
        part(text, ", expected ", "\n"),
    };
    return raise_with(state->corruption_error, text, names, values, 5);
}

PyObject *us_py_raise_failure(struct us_py_state *state, struct us_cache *cache, size_t size)
{
    struct us_error error = {.status = US_ENOMEM};
    us_cache_explain_failure(cache, size, &error);
    return us_py_raise(state, &error, NULL);
}
