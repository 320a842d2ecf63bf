/* py_run.c - type Runner: an op program on its threads, one pass after the other.
 *
 * The GIL is dropped for a pass and taken every few milliseconds to see whether a signal handler
 * raised. The allocator and the caches in use are pinned for as long as a call lasts, so they
 * cannot be closed or destroyed under it; between calls they can, and the next call says so. A
 * Runner is for one thread at a time.
 */
#include "python/py_run.h"

#include <string.h>

extern PyMethodDef us_py_program_functions[];

typedef struct {
    PyObject_HEAD struct us_runner *runner;
    struct us_py_state *state;
    struct us_py_allocator *allocator; /* NULL: another heap */
    PyObject *caches;                  /* tuple of Cache handles in use */
    struct us_cache **core;            /* of each, when the Runner was made */
    _Atomic bool busy;
} runner_object;

/* A call on a runner: what it pinned. */
struct pinned {
    struct us_py_call allocator;
    struct us_py_call *cache;
    Py_ssize_t ncaches;
    bool entered;
    PyThreadState *saved;
};

static void unpin(runner_object *self, struct pinned *p)
{
    while (p->ncaches > 0)
        us_py_leave(&p->cache[--p->ncaches]);
    if (p->entered)
        us_py_leave(&p->allocator);
    PyMem_Free(p->cache);
    atomic_store(&self->busy, false);
}

/* A Runner that ends, `ending`, does without the caches that were destroyed. */
static bool pin_heap(runner_object *self, struct pinned *p, struct us_runner *ending)
{
    Py_ssize_t n = PyTuple_GET_SIZE(self->caches);

    if (!self->allocator)
        return true;
    if (!us_py_enter_allocator(&p->allocator, self->allocator))
        return false;
    p->entered = true;
    p->cache = PyMem_Calloc((size_t)n + 1, sizeof(*p->cache));
    if (!p->cache) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        PyObject *cache = PyTuple_GET_ITEM(self->caches, i);

        if (us_py_enter_cache(&p->cache[p->ncaches], (struct us_py_cache *)cache)) {
            p->ncaches++;
            continue;
        }
        if (!ending)
            return false;
        PyErr_Clear();
        us_runner_forget_cache(ending, self->core[i]);
    }
    return true;
}

static bool pin_for(runner_object *self, struct pinned *p, struct us_runner *ending)
{
    memset(p, 0, sizeof(*p));
    if (atomic_exchange(&self->busy, true)) {
        PyErr_SetString(PyExc_RuntimeError,
                        "this Runner works in another thread; make one for each thread");
        return false;
    }
    if (pin_heap(self, p, ending))
        return true;
    unpin(self, p);
    return false;
}

static bool pin(runner_object *self, struct pinned *p)
{
    return pin_for(self, p, NULL);
}

/* The scripted machine keeps the GIL: its calls come one at a time. */
static void drop_gil(struct pinned *p)
{
#ifdef US_MODEL
    (void)p;
#else
    p->saved = PyEval_SaveThread();
#endif
}

static void take_gil(struct pinned *p)
{
#ifdef US_MODEL
    (void)p;
#else
    PyEval_RestoreThread(p->saved);
#endif
}

static bool signal_raised(void *context)
{
    bool raised;

    take_gil(context);
    raised = PyErr_CheckSignals() != 0;
    drop_gil(context);
    return raised;
}

/* ---- making and ending
 * ----------------------------------------------------------------------------- */

static bool one_of(const char *what, const char *value, const char *const *names, int *out)
{
    for (int i = 0; names[i]; i++)
        if (!strcmp(value, names[i])) {
            *out = i;
            return true;
        }
    PyErr_Format(PyExc_ValueError, "%s=%s: expected %s, %s or %s", what, value, names[0], names[1],
                 names[2]);
    return false;
}

static bool parse_choices(const char *heap, const char *touch, struct us_run_options *o)
{
    static const char *const heaps[] = {"allocator", "malloc", "null", NULL};
    static const char *const touches[] = {"none", "first", "all", NULL};
    int h, t;

    if (!one_of("heap", heap, heaps, &h) || !one_of("touch", touch, touches, &t))
        return false;
    o->heap = (enum us_heap_kind)h;
    o->touch = (enum us_touch)t;
    return true;
}

/* The allocator and the handles of named caches, or neither. */
static bool keep_heap(runner_object *self, PyObject *allocator, PyObject *handles,
                      const struct us_run_options *o)
{
    if (!(self->caches = PySequence_Tuple(handles)))
        return false;
    self->core = PyMem_Calloc((size_t)PyTuple_GET_SIZE(self->caches) + 1, sizeof(*self->core));
    if (!self->core) {
        PyErr_NoMemory();
        return false;
    }
    if (o->heap != US_HEAP_ALLOCATOR)
        return true;
    if (!PyObject_TypeCheck(allocator, (PyTypeObject *)self->state->allocator_type)) {
        PyErr_Format(PyExc_TypeError, "a Runner needs an Allocator of this module, not %.100s",
                     Py_TYPE(allocator)->tp_name);
        return false;
    }
    self->allocator = (struct us_py_allocator *)Py_NewRef(allocator);
    for (Py_ssize_t i = 0; i < PyTuple_GET_SIZE(self->caches); i++)
        if (!PyObject_TypeCheck(PyTuple_GET_ITEM(self->caches, i),
                                (PyTypeObject *)self->state->cache_type)) {
            PyErr_SetString(PyExc_TypeError, "handles must be Caches of the allocator");
            return false;
        }
    return true;
}

static bool create(runner_object *self, PyObject *program[3], struct us_run_options *o)
{
    struct us_error error = {0};
    struct us_py_program p;
    struct pinned pinned;

    if (!pin(self, &pinned))
        return false;
    for (Py_ssize_t i = 0; i < pinned.ncaches; i++)
        self->core[i] = ((struct us_py_cache *)PyTuple_GET_ITEM(self->caches, i))->core;
    if (us_py_program_parse(&p, program[0], program[1], program[2])) {
        o->allocator = self->allocator ? self->allocator->core : NULL;
        o->poll = signal_raised;
        self->runner = us_runner_create(&p.c, o, &error);
        if (!self->runner)
            us_py_raise(self->state, &error, NULL);
    }
    us_py_program_release(&p);
    unpin(self, &pinned);
    return self->runner != NULL;
}

static PyObject *runner_new(PyTypeObject *type, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"caches",    "channels",    "tasks",       "allocator", "handles",
                            "heap",      "touch",       "pace",        "window",    "seed",
                            "warmup_ns", "duration_ns", "timeline_ns", NULL};
    PyObject *program[3], *allocator = Py_None, *handles = NULL;
    const char *heap = "allocator", *touch = "first";
    struct us_run_options o = {0};
    unsigned long long window = 1000, seed = 0, warmup = 0, duration = 0, timeline = 0;
    runner_object *self;

    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "OOO|$OOssdKKKKK:Runner", names, &program[0],
                                     &program[1], &program[2], &allocator, &handles, &heap, &touch,
                                     &o.pace, &window, &seed, &warmup, &duration, &timeline))
        return NULL;
    if (!parse_choices(heap, touch, &o))
        return NULL;
    o.window = window;
    o.seed = seed;
    o.warmup_ns = warmup;
    o.duration_ns = duration;
    o.timeline_ns = timeline;
    self = (runner_object *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    handles = handles ? Py_NewRef(handles) : PyTuple_New(0);
    self->state = us_py_state_of(type);
    if (!handles || !self->state || !keep_heap(self, allocator, handles, &o) ||
        !create(self, program, &o))
        Py_CLEAR(self);
    Py_XDECREF(handles);
    return (PyObject *)self;
}

/* Ends the threads; frees what a pass left live if the allocator is still there. */
static void end_runner(runner_object *self)
{
    struct us_runner *runner = self->runner;
    struct pinned p;

    if (!runner)
        return;
    self->runner = NULL;
    if (!pin_for(self, &p, runner)) {
        PyErr_Clear();
        us_runner_forget(runner); /* the allocator took its objects along */
        us_runner_destroy(runner);
        return;
    }
    us_runner_set_poll_context(runner, &p);
    drop_gil(&p);
    us_runner_destroy(runner);
    take_gil(&p);
    unpin(self, &p);
}

static int runner_traverse(PyObject *self, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(self));
    Py_VISIT(((runner_object *)self)->allocator);
    Py_VISIT(((runner_object *)self)->caches);
    return 0;
}

static void runner_dealloc(PyObject *op)
{
    runner_object *self = (runner_object *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject *saved_type, *saved_value, *saved_traceback;

    PyObject_GC_UnTrack(op);
    PyErr_Fetch(&saved_type, &saved_value, &saved_traceback);
    if (self->caches)
        end_runner(self);
    PyErr_Restore(saved_type, saved_value, saved_traceback);
    Py_CLEAR(self->allocator);
    Py_CLEAR(self->caches);
    PyMem_Free(self->core);
    type->tp_free(op);
    Py_DECREF(type);
}

/* ---- methods -----------------------------------------------------------------------------------
 */

static bool is_open(const runner_object *self)
{
    if (self->runner)
        return true;
    PyErr_SetString(PyExc_RuntimeError, "this Runner is closed; make a new one");
    return false;
}

static PyObject *as_seconds(const uint64_t *ns, unsigned n)
{
    PyObject *list = PyList_New(n);

    for (unsigned i = 0; list && i < n; i++) {
        PyObject *seconds = PyFloat_FromDouble((double)ns[i] * 1e-9);

        if (!seconds)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, seconds);
    }
    return list;
}

static PyObject *runner_passes(PyObject *op, PyObject *number)
{
    runner_object *self = (runner_object *)op;
    long n = PyLong_AsLong(number);
    struct us_error error = {0};
    PyObject *result = NULL;
    enum us_status status;
    struct pinned p;
    uint64_t *ns;

    if (PyErr_Occurred() || !is_open(self))
        return NULL;
    if (n < 1 || n > 10000000)
        return PyErr_Format(PyExc_ValueError, "%ld passes, expected 1 to 10000000", n);
    ns = PyMem_Calloc((size_t)n, sizeof(*ns));
    if (!ns)
        return PyErr_NoMemory();
    if (pin(self, &p)) {
        us_runner_set_poll_context(self->runner, &p);
        drop_gil(&p);
        status = us_runner_passes(self->runner, (unsigned)n, ns, &error);
        take_gil(&p);
        if (status == US_OK)
            result = as_seconds(ns, (unsigned)n);
        else if (!PyErr_Occurred())
            us_py_raise(self->state, &error, NULL);
        unpin(self, &p);
    }
    PyMem_Free(ns);
    return result;
}

static PyObject *runner_peaks(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    runner_object *self = (runner_object *)op;
    struct us_account peak = {0};
    struct us_error error = {0};
    enum us_status status;
    struct pinned p;

    if (!is_open(self) || !pin(self, &p))
        return NULL;
    us_runner_set_poll_context(self->runner, &p);
    drop_gil(&p);
    status = us_runner_peaks(self->runner, &peak, &error);
    take_gil(&p);
    if (status != US_OK && !PyErr_Occurred())
        us_py_raise(self->state, &error, NULL);
    unpin(self, &p);
    if (status != US_OK)
        return NULL;
    return Py_BuildValue("{sKsKsKsKsK}", "live", peak.live, "queued", peak.queued, "free_in_slabs",
                         peak.free_in_slabs, "waste", peak.waste, "reserved", peak.reserved);
}

static PyObject *runner_clean(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    runner_object *self = (runner_object *)op;
    struct pinned p;

    if (!is_open(self) || !pin(self, &p))
        return NULL;
    us_runner_set_poll_context(self->runner, &p);
    drop_gil(&p);
    us_runner_clean(self->runner);
    take_gil(&p);
    unpin(self, &p);
    Py_RETURN_NONE;
}

static PyObject *runner_close(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    runner_object *self = (runner_object *)op;

    if (atomic_load(&self->busy)) {
        PyErr_SetString(PyExc_RuntimeError, "this Runner works in another thread; wait for it");
        return NULL;
    }
    end_runner(self);
    Py_RETURN_NONE;
}

static PyObject *runner_live(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    runner_object *self = (runner_object *)op;
    uint64_t objects, bytes;

    if (!is_open(self))
        return NULL;
    bytes = us_runner_live_bytes(self->runner, &objects);
    return Py_BuildValue("(KK)", (unsigned long long)objects, (unsigned long long)bytes);
}

static PyObject *runner_task_seconds(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    runner_object *self = (runner_object *)op;
    unsigned n;
    uint64_t *ns;
    PyObject *list;

    if (!is_open(self))
        return NULL;
    n = us_runner_ntasks(self->runner);
    ns = PyMem_Calloc(n, sizeof(*ns));
    if (!ns)
        return PyErr_NoMemory();
    for (unsigned i = 0; i < n; i++)
        ns[i] = us_runner_task_ns(self->runner, i);
    list = as_seconds(ns, n);
    PyMem_Free(ns);
    return list;
}

static PyObject *runner_marks(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    runner_object *self = (runner_object *)op;
    PyObject *list;
    unsigned n;

    if (!is_open(self))
        return NULL;
    n = us_runner_ntasks(self->runner);
    list = PyList_New(n);
    for (unsigned i = 0; list && i < n; i++) {
        PyObject *marks = PyLong_FromUnsignedLongLong(us_runner_marks(self->runner, i));

        if (!marks)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, i, marks);
    }
    return list;
}

static PyObject *runner_elapsed(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    runner_object *self = (runner_object *)op;

    if (!is_open(self))
        return NULL;
    return PyFloat_FromDouble((double)us_runner_elapsed_ns(self->runner) * 1e-9);
}

#ifdef US_MODEL
static PyObject *runner_run_for(PyObject *op, PyObject *number)
{
    runner_object *self = (runner_object *)op;
    uint64_t ns = PyLong_AsUnsignedLongLong(number), elapsed = 0;
    struct us_error error = {0};
    enum us_status status;
    struct pinned p;

    if (PyErr_Occurred() || !is_open(self) || !pin(self, &p))
        return NULL;
    us_runner_set_poll_context(self->runner, &p);
    status = us_runner_run_for(self->runner, ns, &elapsed, &error);
    if (status != US_OK && !PyErr_Occurred())
        us_py_raise(self->state, &error, NULL);
    unpin(self, &p);
    return status == US_OK ? PyFloat_FromDouble((double)elapsed * 1e-9) : NULL;
}

static void tell(void *context, const char *name, uint64_t value)
{
    PyObject *number = context ? PyLong_FromUnsignedLongLong(value) : NULL;

    if (number)
        (void)PyDict_SetItemString(context, name, number);
    Py_XDECREF(number);
}

static PyObject *runner_explain(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    runner_object *self = (runner_object *)op;
    PyObject *dict;

    if (!is_open(self) || !(dict = PyDict_New()))
        return NULL;
    us_runner_explain(self->runner, tell, dict);
    if (PyErr_Occurred())
        Py_CLEAR(dict);
    return dict;
}

static PyObject *runner_timeline(PyObject *op, PyObject *Py_UNUSED(ignored))
{
    runner_object *self = (runner_object *)op;
    const struct us_timeline_row *row;
    PyObject *list;
    uint64_t n;

    if (!is_open(self))
        return NULL;
    row = us_runner_timeline(self->runner, &n);
    list = PyList_New((Py_ssize_t)n);
    for (uint64_t i = 0; list && i < n; i++) {
        PyObject *tuple =
            Py_BuildValue("KKKKKKKK", row[i].ns, row[i].live, row[i].queued, row[i].free_in_slabs,
                          row[i].reserved, row[i].metadata, row[i].slabs, row[i].marks);

        if (!tuple)
            Py_CLEAR(list);
        else
            PyList_SET_ITEM(list, (Py_ssize_t)i, tuple);
    }
    return list;
}
#endif

static PyMethodDef runner_methods[] = {
#ifdef US_MODEL
    {"run_for", runner_run_for, METH_O,
     PyDoc_STR("run_for($self, ns, /)\n--\n\n"
               "Begin a pass, or go on with it, for so much virtual time; return its seconds.\n"
               "CPUs stop between two operations. What is counted starts anew; clean() ends it.")},
    {"explain", runner_explain, METH_NOARGS,
     PyDoc_STR("explain($self, /)\n--\n\n"
               "Where the time of the measured part went: picoseconds and counts, over all CPUs.")},
    {"timeline", runner_timeline, METH_NOARGS,
     PyDoc_STR("timeline($self, /)\n--\n\n"
               "Rows of (ns, live, queued, free_in_slabs, reserved, metadata, slabs, marks).")},
#endif

    {"passes", runner_passes, METH_O,
     PyDoc_STR("passes($self, n, /)\n--\n\n"
               "Run n passes, freeing between them what stays live; return the seconds of each.\n"
               "What the last one leaves live stays until clean() or the next passes().")},
    {"peaks", runner_peaks, METH_NOARGS,
     PyDoc_STR("peaks($self, /)\n--\n\n"
               "Run one pass, taking byte accounts every few events; return the largest of each.")},
    {"clean", runner_clean, METH_NOARGS,
     PyDoc_STR("clean($self, /)\n--\n\nFree what the last pass left live.")},
    {"close", runner_close, METH_NOARGS,
     PyDoc_STR("close($self, /)\n--\n\nFree what is live and end the threads.")},
    {"live", runner_live, METH_NOARGS,
     PyDoc_STR("live($self, /)\n--\n\n"
               "Number and bytes (as asked for) of the objects the last pass left live.")},
    {"task_seconds", runner_task_seconds, METH_NOARGS,
     PyDoc_STR("task_seconds($self, /)\n--\n\nWhen each task ended in the last pass.")},
    {"marks", runner_marks, METH_NOARGS,
     PyDoc_STR("marks($self, /)\n--\n\nMARKs of each task in the last pass's measured part.")},
    {"elapsed", runner_elapsed, METH_NOARGS,
     PyDoc_STR("elapsed($self, /)\n--\n\nSeconds of the last pass's measured part.")},
    {NULL, NULL, 0, NULL},
};

static PyType_Slot runner_slots[] = {
    {Py_tp_doc,
     (void *)PyDoc_STR("Runner(caches, channels, tasks, *, allocator=None, handles=(), "
                       "heap='allocator', touch='first', pace=0.0, window=1000, seed=0, "
                       "warmup_ns=0, duration_ns=0, timeline_ns=0)\n--\n\n"
                       "An op program on its own threads; see unislab.run for the usual way.")},
    {Py_tp_new, runner_new},
    {Py_tp_dealloc, runner_dealloc},
    {Py_tp_traverse, runner_traverse},
    {Py_tp_methods, runner_methods},
    {0, NULL},
};

static PyType_Spec runner_spec = {
    .name = US_PY_MODULE ".Runner",
    .basicsize = sizeof(runner_object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_IMMUTABLETYPE,
    .slots = runner_slots,
};

/* ---- registration
 * ---------------------------------------------------------------------------------- */

static int add_numbers(PyObject *module, const char *name, PyObject *dict)
{
    int failed = dict ? PyModule_AddObjectRef(module, name, dict) : -1;

    Py_XDECREF(dict);
    return failed;
}

int us_py_run_register(PyObject *module)
{
    PyObject *type = PyType_FromModuleAndSpec(module, &runner_spec, NULL);
    int failed = type ? PyModule_AddType(module, (PyTypeObject *)type) : -1;

    Py_XDECREF(type);
    if (failed || PyModule_AddFunctions(module, us_py_program_functions) < 0)
        return -1;
#define US_ROW(id, name, help)    #id, (int)US_OP_##id,
#define US_FORMAT(id, name, help) "si"
    failed = add_numbers(module, "OPS", Py_BuildValue("{" US_OPS(US_FORMAT) "}", US_OPS(US_ROW) 0));
#undef US_ROW
#undef US_FORMAT
#define US_ROW(id, value, help)    #id, (int)US_OPF_##id,
#define US_FORMAT(id, value, help) "si"
    if (!failed)
        failed = add_numbers(module, "OP_FLAGS",
                             Py_BuildValue("{" US_OP_FLAGS(US_FORMAT) "}", US_OP_FLAGS(US_ROW) 0));
#undef US_ROW
#undef US_FORMAT
    return failed;
}
