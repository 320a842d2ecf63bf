/* py_words.c - arrays of 64-bit words that leave by the buffer protocol, and arguments. */
#include "python/py_unislab.h"

/* ---- words ----------------------------------------------------------------------------------- */

struct words {
    PyVarObject ob_base;
    uint64_t word[];
};

static int words_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    static const Py_ssize_t stride = sizeof(uint64_t);
    struct words *w = (struct words *)self;
    view->obj = Py_NewRef(self);
    view->buf = w->word;
    view->len = Py_SIZE(w) * stride;
    view->readonly = 0;
    view->itemsize = stride;
    view->format = flags & PyBUF_FORMAT ? "Q" : NULL;
    view->ndim = 1;
    view->shape = flags & PyBUF_ND ? &w->ob_base.ob_size : NULL;
    view->strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? (Py_ssize_t *)&stride : NULL;
    view->suboffsets = NULL;
    view->internal = NULL;
    return 0;
}

static Py_ssize_t words_length(PyObject *self)
{
    return Py_SIZE(self);
}

static void words_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);
    PyObject_Free(self);
    Py_DECREF(type);
}

static PyType_Slot words_slots[] = {
    {Py_tp_dealloc, words_dealloc},
    {Py_tp_doc, "Native 64-bit words: what a buffer consumer such as numpy.frombuffer wraps."},
    {Py_bf_getbuffer, words_getbuffer},
    {Py_sq_length, words_length},
    {0, NULL},
};

PyType_Spec us_py_addresses_spec = {
    .name = US_PY_MODULE "._Words",
    .basicsize = sizeof(struct words),
    .itemsize = sizeof(uint64_t),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = words_slots,
};

PyObject *us_py_words(struct us_py_state *state, size_t n, uint64_t **words)
{
    if (!state->addresses_type) {
        PyErr_SetString(PyExc_RuntimeError, "the interpreter is shutting down");
        return NULL;
    }
    struct words *w =
        PyObject_NewVar(struct words, (PyTypeObject *)state->addresses_type, (Py_ssize_t)n);
    if (w)
        *words = w->word;
    return (PyObject *)w;
}

static bool import_numpy(struct us_py_state *state)
{
    PyObject *numpy = PyImport_ImportModule("numpy");
    if (!numpy)
        return false;
    Py_XSETREF(state->uint64, PyObject_CallMethod(numpy, "dtype", "s", "uint64"));
    if (state->uint64)
        Py_XSETREF(state->frombuffer, PyObject_GetAttrString(numpy, "frombuffer"));
    Py_DECREF(numpy);
    return state->frombuffer != NULL;
}

PyObject *us_py_array(struct us_py_state *state, PyObject *words)
{
    if (!state->frombuffer && !import_numpy(state))
        return NULL;
    PyObject *args[] = {words, state->uint64};
    return PyObject_Vectorcall(state->frombuffer, args, 2, NULL);
}

/* ---- arguments ------------------------------------------------------------------------------- */

/* PyNumber_Index with an error that says which argument. */
static PyObject *integer(PyObject *value, const char *wrong, const char *expected)
{
    if (PyIndex_Check(value))
        return PyNumber_Index(value);
    PyErr_Format(PyExc_TypeError, "%.200R %s: expected %s", value, wrong, expected);
    return NULL;
}

bool us_py_count(PyObject *value, const char *what, Py_ssize_t least, Py_ssize_t most,
                 Py_ssize_t *out)
{
    char wrong[64];
    int overflow;
    PyOS_snprintf(wrong, sizeof wrong, "is no %s", what);
    PyObject *index = integer(value, wrong, "an integer");
    if (!index)
        return false;
    long long n = PyLong_AsLongLongAndOverflow(index, &overflow);
    bool ok = !overflow && n >= least && n <= most;
    if (!ok)
        PyErr_Format(PyExc_ValueError, "%S %s: expected %zd to %zd", index, wrong, least, most);
    Py_DECREF(index);
    *out = (Py_ssize_t)n;
    return ok;
}

bool us_py_address(PyObject *value, uint64_t *out)
{
    PyObject *index = integer(value, "is no address", "an integer, 0 to 2**64 - 1");
    if (!index)
        return false;
    *out = PyLong_AsUnsignedLongLong(index);
    bool ok = !(*out == UINT64_MAX && PyErr_Occurred());
    if (!ok && PyErr_ExceptionMatches(PyExc_OverflowError)) {
        PyErr_Clear();
        PyErr_Format(PyExc_ValueError, "%S is no address: expected 0 to 2**64 - 1", index);
    }
    Py_DECREF(index);
    return ok;
}

/* `other` is put before what else is expected. */
static bool node_of(PyObject *value, const struct us_machine *machine, const char *other, int *node)
{
    const unsigned last = machine->nnodes - 1;
    int overflow;
    if (!PyIndex_Check(value)) {
        PyErr_Format(PyExc_TypeError,
                     "node %.200R is not on this machine: expected %san integer, 0 to %u", value,
                     other, last);
        return false;
    }
    PyObject *index = PyNumber_Index(value);
    if (!index)
        return false;
    long n = PyLong_AsLongAndOverflow(index, &overflow);
    bool there = !overflow && n >= 0 && n <= (long)last;
    if (!there)
        PyErr_Format(PyExc_ValueError, "node %S is not on this machine: expected %s0 to %u", index,
                     other, last);
    Py_DECREF(index);
    *node = (int)n;
    return there;
}

bool us_py_node(PyObject *value, const struct us_machine *machine, int *node)
{
    *node = US_ANY_NODE;
    return value == Py_None || node_of(value, machine, "None or ", node);
}

bool us_py_one_node(PyObject *value, const struct us_machine *machine, int *node)
{
    return node_of(value, machine, "", node);
}

static bool set_flag(PyObject *value, unsigned flag, unsigned *flags)
{
    int truth = PyObject_IsTrue(value);
    if (truth > 0)
        *flags |= flag;
    return truth >= 0;
}

bool us_py_placement(const char *function, PyObject *const *args, PyObject *kwnames,
                     const struct us_machine *machine, unsigned *flags, int *node)
{
    Py_ssize_t n = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    *flags = 0;
    *node = US_ANY_NODE;
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *name = PyTuple_GET_ITEM(kwnames, i);
        bool ok;
        if (PyUnicode_CompareWithASCIIString(name, "node") == 0) {
            ok = us_py_node(args[i], machine, node);
        } else if (PyUnicode_CompareWithASCIIString(name, "zero") == 0) {
            ok = set_flag(args[i], US_ZERO, flags);
        } else if (PyUnicode_CompareWithASCIIString(name, "thisnode") == 0) {
            ok = set_flag(args[i], US_THISNODE, flags);
        } else {
            PyErr_Format(
                PyExc_TypeError,
                "%s() got an unexpected keyword argument %R: expected node, zero or thisnode",
                function, name);
            ok = false;
        }
        if (!ok)
            return false;
    }
    return true;
}

/* Pairs of a list of (name, text) tuples; the strings belong to the list. */
bool us_py_pair_texts(PyObject *pairs, Py_ssize_t i, const char **name, const char **text)
{
    return PyArg_ParseTuple(PyList_GET_ITEM(pairs, i), "ss", name, text);
}

/* A tuple of numbers as malloc'ed array; NULL with an exception (or when the tuple is None). */
unsigned *us_py_numbers(PyObject *tuple, unsigned *n)
{
    *n = 0;
    if (tuple == Py_None)
        return NULL;
    Py_ssize_t length = PyTuple_GET_SIZE(tuple);
    unsigned *out = PyMem_New(unsigned, (size_t)length + 1);
    if (!out) {
        PyErr_NoMemory();
        return NULL;
    }
    for (Py_ssize_t i = 0; i < length; i++)
        out[i] = (unsigned)PyLong_AsUnsignedLong(PyTuple_GET_ITEM(tuple, i));
    *n = (unsigned)length;
    if (PyErr_Occurred()) {
        PyMem_Free(out);
        return NULL;
    }
    return out;
}
