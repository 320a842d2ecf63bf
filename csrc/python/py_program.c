/* py_program.c - op programs from Python's arguments, checked, and made from a trace's events. */
#include "python/py_run.h"

#include "work/events.h"

#include <string.h>

static void *zeroed(size_t n, size_t size)
{
    void *p = PyMem_Calloc(n ? n : 1, size);

    if (!p)
        PyErr_NoMemory();
    return p;
}

static bool parse_caches(struct us_py_program *p)
{
    Py_ssize_t n = PySequence_Fast_GET_SIZE(p->keep[0]);

    p->cache = zeroed((size_t)n, sizeof(*p->cache));
    if (!p->cache)
        return false;
    for (Py_ssize_t i = 0; i < n; i++) {
        unsigned long long size, align;

        if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(p->keep[0], i),
                              "zKK;caches: (name, size, "
                              "align)",
                              &p->cache[i].name, &size, &align))
            return false;
        p->cache[i].size = size;
        p->cache[i].align = align;
    }
    p->c.cache = p->cache;
    p->c.ncaches = (unsigned)n;
    return true;
}

static bool parse_channels(struct us_py_program *p)
{
    Py_ssize_t n = PySequence_Fast_GET_SIZE(p->keep[1]);

    p->channel = zeroed((size_t)n, sizeof(*p->channel));
    if (!p->channel)
        return false;
    for (Py_ssize_t i = 0; i < n; i++) {
        unsigned long capacity = PyLong_AsUnsignedLong(PySequence_Fast_GET_ITEM(p->keep[1], i));

        if (PyErr_Occurred())
            return false;
        p->channel[i] = capacity > UINT32_MAX ? UINT32_MAX : (uint32_t)capacity;
    }
    p->c.channel = p->channel;
    p->c.nchannels = (unsigned)n;
    return true;
}

static bool parse_cpus(struct us_py_program *p, Py_ssize_t i, PyObject *cpus)
{
    PyObject *fast = PySequence_Fast(cpus, "the CPUs of a task must be a sequence");
    Py_ssize_t n = fast ? PySequence_Fast_GET_SIZE(fast) : 0;

    if (!fast || !(p->cpus[i] = zeroed((size_t)n, sizeof(unsigned)))) {
        Py_XDECREF(fast);
        return false;
    }
    for (Py_ssize_t k = 0; k < n; k++)
        p->cpus[i][k] = (unsigned)PyLong_AsUnsignedLong(PySequence_Fast_GET_ITEM(fast, k));
    Py_DECREF(fast);
    p->task[i].cpu = p->cpus[i];
    p->task[i].ncpus = (unsigned)n;
    return !PyErr_Occurred();
}

static bool parse_task(struct us_py_program *p, Py_ssize_t i)
{
    PyObject *ops, *cpus;
    Py_buffer *view = &p->buffer[i];

    if (!PyArg_ParseTuple(PySequence_Fast_GET_ITEM(p->keep[2], i),
                          "OO|I;tasks: (ops, cpus) or (ops, cpus, flags)", &ops, &cpus,
                          &p->task[i].flags))
        return false;
    if (PyObject_GetBuffer(ops, view, PyBUF_C_CONTIGUOUS) < 0)
        return false;
    if (view->len % (Py_ssize_t)sizeof(struct us_op)) {
        PyErr_Format(PyExc_ValueError, "task %zd: %zd bytes of ops, expected a multiple of 16", i,
                     view->len);
        return false;
    }
    p->task[i].op = view->buf;
    p->task[i].nops = (size_t)view->len / sizeof(struct us_op);
    return parse_cpus(p, i, cpus);
}

static bool parse_tasks(struct us_py_program *p)
{
    Py_ssize_t n = PySequence_Fast_GET_SIZE(p->keep[2]);

    if (!(p->task = zeroed((size_t)n, sizeof(*p->task))) ||
        !(p->cpus = zeroed((size_t)n, sizeof(*p->cpus))) ||
        !(p->buffer = zeroed((size_t)n, sizeof(*p->buffer))))
        return false;
    p->c.task = p->task;
    p->c.ntasks = (unsigned)n;
    for (Py_ssize_t i = 0; i < n; i++)
        if (!parse_task(p, i))
            return false;
    return true;
}

bool us_py_program_parse(struct us_py_program *p, PyObject *caches, PyObject *channels,
                         PyObject *tasks)
{
    PyObject *given[3] = {caches, channels, tasks};

    memset(p, 0, sizeof(*p));
    for (int i = 0; i < 3; i++)
        if (!(p->keep[i] = PySequence_Fast(given[i], "caches, channels and tasks are sequences")))
            return false;
    return parse_caches(p) && parse_channels(p) && parse_tasks(p);
}

void us_py_program_release(struct us_py_program *p)
{
    for (unsigned i = 0; i < p->c.ntasks; i++) {
        if (p->buffer && p->buffer[i].obj)
            PyBuffer_Release(&p->buffer[i]);
        if (p->cpus)
            PyMem_Free(p->cpus[i]);
    }
    PyMem_Free(p->buffer);
    PyMem_Free(p->cpus);
    PyMem_Free(p->task);
    PyMem_Free(p->channel);
    PyMem_Free(p->cache);
    for (int i = 0; i < 3; i++)
        Py_XDECREF(p->keep[i]);
}

/* ---- module functions
 * ---------------------------------------------------------------------------- */

static PyObject *check_program(PyObject *module, PyObject *args)
{
    PyObject *caches, *channels, *tasks, *result = NULL;
    struct us_program_facts facts;
    struct us_py_program p;
    struct us_error error = {0};

    if (!PyArg_ParseTuple(args, "OOO:check_program", &caches, &channels, &tasks))
        return NULL;
    if (us_py_program_parse(&p, caches, channels, tasks)) {
        if (us_program_check(&p.c, &facts, &error) != US_OK) {
            us_py_raise(PyModule_GetState(module), &error, NULL);
        } else {
            result = Py_BuildValue("{s:K,s:K,s:K,s:I,s:K}", "allocs", facts.nallocs, "frees",
                                   facts.nfrees, "marks", facts.nmarks, "shared_slots",
                                   facts.nshared, "span_ns", facts.span_ns);
            us_program_facts_release(&facts);
        }
    }
    us_py_program_release(&p);
    return result;
}

/* One bytes object of ops a task. */
static PyObject *as_list(const struct us_ops *ops, uint32_t ntasks)
{
    PyObject *list = PyList_New(ntasks);

    for (uint32_t i = 0; list && i < ntasks; i++) {
        PyObject *bytes = PyBytes_FromStringAndSize((const char *)ops[i].op,
                                                    (Py_ssize_t)(ops[i].n * sizeof(*ops[i].op)));

        if (!bytes)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, bytes);
    }
    return list;
}

static PyObject *compile_events(PyObject *module, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"events",   "ntasks",        "nobjects", "window",
                            "clock_ns", "clock_of_each", NULL};
    struct us_events_options o = {0};
    struct us_error error = {0};
    unsigned long long window, clock_ns;
    Py_buffer events;
    PyObject *result = NULL;
    struct us_ops *ops;
    int each;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "y*IIKKp:compile_events", names, &events,
                                     &o.ntasks, &o.nobjects, &window, &clock_ns, &each))
        return NULL;
    o.window = window;
    o.clock_ns = clock_ns;
    o.clock_of_each = each;
    ops = zeroed(o.ntasks, sizeof(*ops));
    if (ops && events.len % (Py_ssize_t)sizeof(struct us_event_in)) {
        PyErr_Format(PyExc_ValueError, "%zd bytes of events, expected a multiple of %zu",
                     events.len, sizeof(struct us_event_in));
    } else if (ops) {
        if (us_events_compile(events.buf, (size_t)events.len / sizeof(struct us_event_in), &o, ops,
                              &error) == US_OK)
            result = as_list(ops, o.ntasks);
        else
            us_py_raise(PyModule_GetState(module), &error, NULL);
        for (uint32_t i = 0; i < o.ntasks; i++)
            free(ops[i].op);
    }
    PyMem_Free(ops);
    PyBuffer_Release(&events);
    return result;
}

PyMethodDef us_py_program_functions[] = {
    {"check_program", check_program, METH_VARARGS,
     PyDoc_STR("check_program($module, caches, channels, tasks, /)\n--\n\n"
               "Check an op program; return counts of one pass, or raise ValueError.")},
    {"compile_events", (PyCFunction)(void (*)(void))compile_events, METH_VARARGS | METH_KEYWORDS,
     PyDoc_STR("compile_events($module, /, events, ntasks, nobjects, window, clock_ns, "
               "clock_of_each)\n--\n\n"
               "Make one op program a task from the events of a trace.")},
    {NULL, NULL, 0, NULL},
};
