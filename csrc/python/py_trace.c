/* TraceReader takes text by feed() and gives columns by finish(); Column owns one array and exports
 * it through the buffer protocol, so that numpy.frombuffer() makes an array of it without a copy.
 *
 * feed() runs without the GIL. A reader is for one thread at a time: the flag `busy`, taken with an
 * atomic exchange, turns a second one away instead of letting it wait. */
#include "python/py_trace.h"

#include "work/trace_read.h"

#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#ifdef US_MODEL
#define MODULE "unislab._model"
#else
#define MODULE "unislab._native"
#endif

typedef struct {
    PyObject_HEAD void *data; /* from malloc; owned */
    const char *format;
    Py_ssize_t itemsize;
    Py_ssize_t length; /* items; also the shape that exported views point to */
} column_object;

typedef struct {
    PyObject_HEAD struct us_trace_reader *reader; /* NULL once finished */
    PyTypeObject *column_type;
    atomic_bool busy;
} reader_object;

/* ---- Column ------------------------------------------------------------------------------ */

static void column_dealloc(PyObject *self)
{
    PyTypeObject *type = Py_TYPE(self);

    free(((column_object *)self)->data);
    type->tp_free(self);
    Py_DECREF(type);
}

static int column_getbuffer(PyObject *self, Py_buffer *view, int flags)
{
    column_object *column = (column_object *)self;
    static char nothing;

    if (flags & PyBUF_WRITABLE) {
        PyErr_SetString(PyExc_BufferError,
                        "a Column of a trace is read-only; copy it to change it");
        return -1;
    }
    *view = (Py_buffer){
        .buf = column->data ? column->data : &nothing,
        .obj = Py_NewRef(self),
        .len = column->length * column->itemsize,
        .itemsize = column->itemsize,
        .readonly = 1,
        .ndim = 1,
        .format = flags & PyBUF_FORMAT ? (char *)column->format : NULL,
        .shape = flags & PyBUF_ND ? &column->length : NULL,
        .strides = (flags & PyBUF_STRIDES) == PyBUF_STRIDES ? &column->itemsize : NULL,
    };
    return 0;
}

static Py_ssize_t column_length(PyObject *self)
{
    return ((column_object *)self)->length;
}

static PyObject *column_sizeof(PyObject *self, PyObject *Py_UNUSED(ignored))
{
    column_object *column = (column_object *)self;

    return PyLong_FromSsize_t((Py_ssize_t)sizeof(*column) + column->length * column->itemsize);
}

static PyMethodDef column_methods[] = {
    {"__sizeof__", column_sizeof, METH_NOARGS, PyDoc_STR("Bytes of the object and its array.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot column_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("One array of a trace; read it through the buffer protocol.")},
    {Py_tp_dealloc, column_dealloc},
    {Py_tp_methods, column_methods},
    {Py_sq_length, column_length},
    {Py_bf_getbuffer, column_getbuffer},
    {0, NULL},
};

static PyType_Spec column_spec = {
    .name = MODULE ".Column",
    .basicsize = sizeof(column_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = column_slots,
};

/* Moves the array *data into a new Column. */
static PyObject *column_take(PyTypeObject *type, void **data, const char *format, size_t itemsize,
                             size_t length)
{
    column_object *column = (column_object *)type->tp_alloc(type, 0);
    void *fitted;

    if (!column)
        return NULL;
    /* Arrays grow by doubling; give back the half that was not needed. */
    fitted = length ? realloc(*data, length * itemsize) : NULL;
    column->data = fitted ? fitted : *data;
    *data = NULL;
    column->format = format;
    column->itemsize = (Py_ssize_t)itemsize;
    column->length = (Py_ssize_t)length;
    return (PyObject *)column;
}

/* ---- TraceReader ------------------------------------------------------------------------- */

static const struct {
    const char *name;
    enum us_trace_format format;
} formats[] = {
    {"ftrace", US_TRACE_FTRACE},
    {"trace-cmd", US_TRACE_TRACE_CMD},
    {"perf", US_TRACE_PERF},
};

static int format_from_name(const char *name, enum us_trace_format *format)
{
    *format = US_TRACE_AUTO;
    if (!name)
        return 0;
    for (size_t i = 0; i < Py_ARRAY_LENGTH(formats); i++) {
        if (!strcmp(name, formats[i].name)) {
            *format = formats[i].format;
            return 0;
        }
    }
    PyErr_Format(PyExc_ValueError,
                 "unknown trace format '%s': expected 'ftrace', 'trace-cmd', 'perf' or None", name);
    return -1;
}

static PyObject *reader_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"lenient", "format", NULL};
    struct us_trace_options options = {0};
    const char *format = NULL;
    PyObject *module, *column_type;
    reader_object *self;
    int lenient = 0;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|$pz:TraceReader", names, &lenient, &format) ||
        format_from_name(format, &options.format) < 0)
        return NULL;
    options.lenient = lenient;
    module = PyType_GetModule(type);
    column_type = module ? PyObject_GetAttrString(module, "Column") : NULL;
    if (!column_type)
        return NULL;
    self = (reader_object *)type->tp_alloc(type, 0);
    if (!self) {
        Py_DECREF(column_type);
        return NULL;
    }
    self->column_type = (PyTypeObject *)column_type;
    self->reader = us_trace_reader_new(&options);
    if (!self->reader) {
        Py_DECREF(self);
        return PyErr_NoMemory();
    }
    return (PyObject *)self;
}

static void reader_dealloc(PyObject *op)
{
    reader_object *self = (reader_object *)op;
    PyTypeObject *type = Py_TYPE(op);

    us_trace_reader_free(self->reader);
    Py_XDECREF(self->column_type);
    type->tp_free(op);
    Py_DECREF(type);
}

/* Takes the reader for this thread; -1 with an exception if it is finished or in use. */
static int reader_take(reader_object *self)
{
    if (atomic_exchange(&self->busy, true)) {
        PyErr_SetString(PyExc_RuntimeError, "this TraceReader is in use by another thread");
        return -1;
    }
    if (self->reader)
        return 0;
    atomic_store(&self->busy, false);
    PyErr_SetString(PyExc_ValueError, "this TraceReader is finished; make a new one");
    return -1;
}

static void reader_give(reader_object *self)
{
    atomic_store(&self->busy, false);
}

static void raise_status(const reader_object *self, enum us_trace_status status)
{
    const struct us_trace_error *error = us_trace_reader_error(self->reader);

    if (status == US_TRACE_NO_MEMORY)
        PyErr_NoMemory();
    else
        PyErr_Format(PyExc_ValueError, "line %llu: expected %s",
                     (unsigned long long)error->line_number, error->expected);
}

static PyObject *reader_feed(PyObject *op, PyObject *text)
{
    reader_object *self = (reader_object *)op;
    enum us_trace_status status;
    Py_buffer view;

    if (PyObject_GetBuffer(text, &view, PyBUF_SIMPLE) < 0)
        return NULL;
    if (reader_take(self) < 0) {
        PyBuffer_Release(&view);
        return NULL;
    }
    Py_BEGIN_ALLOW_THREADS status = us_trace_reader_feed(self->reader, view.buf, (size_t)view.len);
    Py_END_ALLOW_THREADS PyBuffer_Release(&view);
    if (status != US_TRACE_OK)
        raise_status(self, status);
    reader_give(self);
    return status == US_TRACE_OK ? Py_NewRef(Py_None) : NULL;
}

/* ---- results ----------------------------------------------------------------------------- */

/* Stores a new reference under the key and drops it; -1 if there is none or it cannot be stored. */
static int put(PyObject *dict, const char *key, PyObject *value)
{
    int failed = value ? PyDict_SetItemString(dict, key, value) : -1;

    Py_XDECREF(value);
    return failed;
}

static PyObject *text_object(struct us_text text)
{
    return PyUnicode_DecodeUTF8(text.at, (Py_ssize_t)text.len, "backslashreplace");
}

static PyObject *list_of(const struct us_strings *strings)
{
    PyObject *list = PyList_New((Py_ssize_t)strings->count);

    for (uint32_t i = 0; list && i < strings->count; i++) {
        PyObject *text = text_object(us_strings_get(strings, i));

        if (!text)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, text);
    }
    return list;
}

static PyObject *counts_of(const struct us_trace_counts *counts)
{
    PyObject *dict = PyDict_New();

    if (!dict)
        return NULL;
#define X(name, help)                                                    \
    if (put(dict, #name, PyLong_FromUnsignedLongLong(counts->name)) < 0) \
        goto fail;
    US_TRACE_COUNTS(X)
#undef X
    return dict;
fail:
    Py_DECREF(dict);
    return NULL;
}

static PyObject *other_events_of(const struct us_trace_result *result)
{
    PyObject *dict = PyDict_New();

    for (uint32_t i = 0; dict && i < result->other_names->count; i++) {
        PyObject *name = text_object(us_strings_get(result->other_names, i));
        PyObject *count = PyLong_FromUnsignedLongLong(result->other_counts[i]);

        if (!name || !count || PyDict_SetItem(dict, name, count) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(name);
        Py_XDECREF(count);
    }
    return dict;
}

static PyObject *columns_of(PyTypeObject *type, struct us_trace_columns *columns)
{
    PyObject *dict = PyDict_New();

    if (!dict)
        return NULL;
#define X(name, ctype, format, help)                                                               \
    if (put(dict, #name,                                                                           \
            column_take(type, (void **)&columns->name, format, sizeof(ctype), columns->rows)) < 0) \
        goto fail;
    US_TRACE_COLUMNS(X)
#undef X
    return dict;
fail:
    Py_DECREF(dict);
    return NULL;
}

static PyObject *format_name(enum us_trace_format format)
{
    for (size_t i = 0; i < Py_ARRAY_LENGTH(formats); i++) {
        if (formats[i].format == format)
            return PyUnicode_FromString(formats[i].name);
    }
    return Py_NewRef(Py_None);
}

/* (line number, beginning of the line, expected, cut), or None. */
static PyObject *error_of(const reader_object *self)
{
    const struct us_trace_error *error = us_trace_reader_error(self->reader);

    if (!error->line_number)
        return Py_NewRef(Py_None);
    return Py_BuildValue("Ky#sO", (unsigned long long)error->line_number, error->line,
                         (Py_ssize_t)error->line_len, error->expected,
                         error->cut ? Py_True : Py_False);
}

static PyObject *result_dict(reader_object *self, const struct us_trace_result *result)
{
    PyObject *dict = PyDict_New();

    if (!dict)
        return NULL;
    if (put(dict, "columns", columns_of(self->column_type, result->columns)) < 0 ||
        put(dict, "caches", list_of(result->caches)) < 0 ||
        put(dict, "call_sites", list_of(result->call_sites)) < 0 ||
        put(dict, "counts", counts_of(&result->counts)) < 0 ||
        put(dict, "other_events", other_events_of(result)) < 0 ||
        put(dict, "format", format_name(result->format)) < 0 ||
        put(dict, "lines", PyLong_FromUnsignedLongLong(result->lines)) < 0 ||
        put(dict, "lines_skipped", PyLong_FromUnsignedLongLong(result->lines_skipped)) < 0 ||
        put(dict, "first_skipped", error_of(self)) < 0 ||
        put(dict, "lost_marks", PyLong_FromUnsignedLongLong(result->lost_marks)) < 0 ||
        put(dict, "header", PyBool_FromLong(result->header)) < 0)
        Py_CLEAR(dict);
    return dict;
}

static PyObject *reader_finish(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    reader_object *self = (reader_object *)op;
    struct us_trace_result result;
    enum us_trace_status status;
    PyObject *dict = NULL;

    if (reader_take(self) < 0)
        return NULL;
    Py_BEGIN_ALLOW_THREADS status = us_trace_reader_finish(self->reader, &result);
    Py_END_ALLOW_THREADS if (status == US_TRACE_OK)
    {
        dict = result_dict(self, &result);
        us_trace_reader_free(self->reader);
        self->reader = NULL;
    }
    else
    {
        raise_status(self, status);
    }
    reader_give(self);
    return dict;
}

static PyObject *reader_error(PyObject *op, void *Py_UNUSED(closure))
{
    reader_object *self = (reader_object *)op;
    PyObject *value;

    if (reader_take(self) < 0)
        return NULL;
    value = error_of(self);
    reader_give(self);
    return value;
}

static PyMethodDef reader_methods[] = {
    {"feed", reader_feed, METH_O,
     PyDoc_STR(
         "feed($self, data, /)\n--\n\n"
         "Take the next piece of text, cut anywhere.  Raises ValueError at a line that is none\n"
         "of a trace, unless lenient; `error` then tells more.")},
    {"finish", reader_finish, METH_NOARGS,
     PyDoc_STR(
         "finish($self, /)\n--\n\n"
         "End the text and return a dict: columns, caches, call_sites, counts, other_events,\n"
         "format, lines, lines_skipped, first_skipped, lost_marks, header.")},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef reader_getset[] = {
    {"error", reader_error, NULL,
     PyDoc_STR(
         "(line number, beginning of the line, expected, whether the text ends in it) of the\n"
         "line that was refused or first skipped, else None."),
     NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot reader_slots[] = {
    {Py_tp_doc, (void *)PyDoc_STR("TraceReader(*, lenient=False, format=None)\n--\n\n"
                                  "Reader of kmem events printed by ftrace, trace-cmd or perf.")},
    {Py_tp_new, reader_new},
    {Py_tp_dealloc, reader_dealloc},
    {Py_tp_methods, reader_methods},
    {Py_tp_getset, reader_getset},
    {0, NULL},
};

static PyType_Spec reader_spec = {
    .name = MODULE ".TraceReader",
    .basicsize = sizeof(reader_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = reader_slots,
};

/* ---- registration ------------------------------------------------------------------------ */

static int add_type(PyObject *module, PyType_Spec *spec)
{
    PyObject *type = PyType_FromModuleAndSpec(module, spec, NULL);
    int failed = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;

    Py_XDECREF(type);
    return failed;
}

static int add_table(PyObject *module, const char *name, PyObject *table)
{
    int failed = table ? PyModule_AddObjectRef(module, name, table) : -1;

    Py_XDECREF(table);
    return failed;
}

/* Tables of the reader, so that Python repeats none: TRACE_COUNTS, TRACE_COLUMNS, TRACE_GFP. */
static int add_tables(PyObject *module)
{
    static const char *const counts[][2] = {
#define X(name, help) {#name, help},
        US_TRACE_COUNTS(X)
#undef X
    };
    static const char *const columns[][3] = {
#define X(name, ctype, format, help) {#name, format, help},
        US_TRACE_COLUMNS(X)
#undef X
    };
    PyObject *table = PyDict_New();

    for (size_t i = 0; table && i < Py_ARRAY_LENGTH(counts); i++) {
        if (put(table, counts[i][0], PyUnicode_FromString(counts[i][1])) < 0)
            Py_CLEAR(table);
    }
    if (add_table(module, "TRACE_COUNTS", table) < 0)
        return -1;
    table = PyDict_New();
    for (size_t i = 0; table && i < Py_ARRAY_LENGTH(columns); i++) {
        if (put(table, columns[i][0], Py_BuildValue("ss", columns[i][1], columns[i][2])) < 0)
            Py_CLEAR(table);
    }
    if (add_table(module, "TRACE_COLUMNS", table) < 0)
        return -1;
    table = PyDict_New();
#define X(name, value, help)                                            \
    if (table && put(table, #name, PyLong_FromUnsignedLong(value)) < 0) \
        Py_CLEAR(table);
    US_TRACE_GFP(X)
#undef X
    return add_table(module, "TRACE_GFP", table);
}

int us_py_trace_register(PyObject *module)
{
    if (add_type(module, &column_spec) < 0 || add_type(module, &reader_spec) < 0)
        return -1;
    return add_tables(module);
}
