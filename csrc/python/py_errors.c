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

static PyObject *text_between(const char *start, const char *stop)
{
    if (!start || !stop)
        Py_RETURN_NONE;
    return PyUnicode_DecodeUTF8(start, stop - start, "replace");
}

/* What follows the key, as a number; None when there is none. */
static PyObject *number_after(const char *at, const char *key)
{
    const char *start = at ? strstr(at, key) : NULL;
    uint64_t value = start ? strtoull(start + strlen(key), NULL, 0) : 0;
    if (!value)
        Py_RETURN_NONE;
    return PyLong_FromUnsignedLongLong(value);
}

/* The quote after the cache's name, which may hold anything, even quotes: what comes next is
 * "', object 0x" with a number and a comma or a colon. NULL when the text names no cache. */
static const char *end_of_name(const char *text)
{
    static const char next[] = "', object 0x";
    if (strncmp(text, "cache '", 7) != 0)
        return NULL;
    for (const char *at = text + 7; (at = strstr(at, next)) != NULL; at++) {
        const char *digits = at + sizeof next - 1;
        size_t n = strspn(digits, "0123456789abcdef");
        if (n && (digits[n] == ':' || strncmp(digits + n, ", slab 0x", 9) == 0))
            return at;
    }
    return NULL;
}

PyObject *us_py_raise_misuse(struct us_py_state *state, const struct us_error *error)
{
    static const char *const names[] = {"cache", "slab", "address", "found", "expected"};
    const char *name_end = end_of_name(error->text);
    const char *rest = name_end ? name_end : error->text;
    const char *found = strstr(rest, "found ");
    const char *expected = found ? strstr(found, ", expected ") : NULL;
    const char *slab = strstr(rest, "slab ");
    PyObject *values[] = {
        text_between(name_end ? error->text + 7 : NULL, name_end),
        number_after(slab && slab < found ? slab : NULL, "slab "),
        number_after(rest, "object "),
        text_between(found ? found + 6 : NULL, expected),
        text_between(expected ? expected + 11 : NULL, error->text + strlen(error->text)),
    };
    return raise_with(state->corruption_error, error->text, names, values, 5);
}

PyObject *us_py_raise_failure(struct us_py_state *state, struct us_cache *cache, size_t n,
                              size_t size)
{
    struct us_error error = {.status = US_ENOMEM};
    us_cache_explain_failures(cache, n, size, &error);
    return us_py_raise(state, &error, NULL);
}
