/* py_sheaf.c - one prefilled sheaf: objects set aside for who holds it, given back once.
 *
 * The core wants one thread at a time at a sheaf. A constructor in Python lets other threads run in
 * the middle of a refill, and in free-threaded builds they run anyway: every call claims the sheaf,
 * and one that finds it claimed raises.
 */
#include "python/py_unislab.h"

enum holder { FREE, CLAIMED, RETURNED };

struct sheaf {
    PyObject ob_base;
    struct us_py_cache *cache;
    struct us_sheaf *core;
    _Atomic int holder;
};

static bool is_alive(struct sheaf *self)
{
    return atomic_load(&self->holder) != RETURNED && !atomic_load(&self->cache->life.ended);
}

/* ---- one call at a time ---------------------------------------------------------------------- */

/* False with an exception. */
static bool claim(struct sheaf *self)
{
    int free = FREE;
    if (atomic_compare_exchange_strong(&self->holder, &free, CLAIMED))
        return true;
    if (free == RETURNED)
        PyErr_Format(PyExc_RuntimeError, "this sheaf of cache %U was returned; prefill a new one",
                     self->cache->name);
    else
        PyErr_Format(PyExc_RuntimeError,
                     "this sheaf of cache %U is in use by another call: a sheaf is for one thread "
                     "at a time, and not for a constructor that its own refill runs",
                     self->cache->name);
    return false;
}

static void settle(struct sheaf *self, enum holder holder)
{
    atomic_store(&self->holder, holder);
}

/* Enters the cache and claims the sheaf; NULL with an exception. */
static struct us_cache *enter(struct us_py_call *call, struct sheaf *self)
{
    struct us_cache *core = us_py_enter_cache(call, self->cache);
    if (core && !claim(self)) {
        us_py_leave(call);
        return NULL;
    }
    return core;
}

static void leave(struct us_py_call *call, struct sheaf *self)
{
    settle(self, FREE);
    us_py_leave(call);
}

/* ---- filling --------------------------------------------------------------------------------- */

struct filling {
    struct us_cache *cache;
    struct us_sheaf *sheaf; /* NULL = none yet */
    size_t n;
    struct us_error error;
};

static void fill(void *context)
{
    struct filling *filling = context;
    filling->error.status = US_OK;
    if (filling->sheaf)
        us_cache_refill_sheaf(filling->cache, 0, &filling->sheaf, filling->n, &filling->error);
    else
        filling->sheaf = us_cache_prefill_sheaf(filling->cache, 0, filling->n, &filling->error);
}

/* False with an exception; the sheaf may be there all the same. */
static bool fill_constructed(struct us_py_cache *cache, struct filling *filling)
{
    if (!cache->record->constructor)
        fill(filling);
    else if (!us_py_while_constructing(cache, fill, filling))
        return false;
    if (filling->error.status == US_OK)
        return true;
    if (filling->error.status == US_ENOSYS) /* a matter of the policy that was chosen */
        filling->error.status = US_EINVAL;
    us_py_raise(cache->allocator->state, &filling->error, NULL);
    return false;
}

static PyObject *sheaf_new(struct us_py_cache *cache, struct us_sheaf *core)
{
    PyTypeObject *type = (PyTypeObject *)cache->allocator->state->sheaf_type;
    struct sheaf *self = type ? (struct sheaf *)type->tp_alloc(type, 0) : NULL;
    if (!self) {
        if (!PyErr_Occurred())
            PyErr_SetString(PyExc_RuntimeError, "the interpreter is shutting down");
        return NULL;
    }
    self->cache = (struct us_py_cache *)Py_NewRef(cache);
    self->core = core;
    settle(self, FREE);
    return (PyObject *)self;
}

PyObject *us_py_cache_prefill_sheaf(PyObject *op, PyObject *value)
{
    struct us_py_cache *cache = (struct us_py_cache *)op;
    struct filling filling = {0};
    struct us_py_call call;
    PyObject *sheaf = NULL;
    Py_ssize_t n;
    if (!us_py_count(value, "number of objects", 1, PY_SSIZE_T_MAX / 64, &n))
        return NULL;
    filling.n = (size_t)n;
    filling.cache = us_py_enter_cache(&call, cache);
    if (!filling.cache)
        return NULL;
    if (us_py_hands_out(cache) && fill_constructed(cache, &filling))
        sheaf = sheaf_new(cache, filling.sheaf);
    if (filling.sheaf && !sheaf)
        us_cache_return_sheaf(filling.cache, filling.sheaf);
    us_py_leave(&call);
    return sheaf;
}

static PyObject *sheaf_refill(PyObject *op, PyObject *value)
{
    struct sheaf *self = (struct sheaf *)op;
    struct filling filling = {0};
    struct us_py_call call;
    Py_ssize_t n;
    if (!us_py_count(value, "number of objects", 1, PY_SSIZE_T_MAX / 64, &n))
        return NULL;
    filling.n = (size_t)n;
    filling.cache = enter(&call, self);
    if (!filling.cache)
        return NULL;
    filling.sheaf = self->core;
    const bool done = fill_constructed(self->cache, &filling);
    self->core = filling.sheaf;
    leave(&call, self);
    return done ? Py_NewRef(Py_None) : NULL;
}

/* ---- allocation ------------------------------------------------------------------------------ */

static bool read_zero(const char *function, PyObject *const *args, Py_ssize_t nargs,
                      PyObject *kwnames, unsigned *flags)
{
    const Py_ssize_t n = kwnames ? PyTuple_GET_SIZE(kwnames) : 0;
    *flags = 0;
    if (nargs) {
        PyErr_Format(PyExc_TypeError, "%s() takes no positional arguments (%zd given)", function,
                     nargs);
        return false;
    }
    for (Py_ssize_t i = 0; i < n; i++) {
        if (PyUnicode_CompareWithASCIIString(PyTuple_GET_ITEM(kwnames, i), "zero") != 0) {
            PyErr_Format(PyExc_TypeError, "%s() got an unexpected keyword argument %R", function,
                         PyTuple_GET_ITEM(kwnames, i));
            return false;
        }
        const int zero = PyObject_IsTrue(args[i]);
        if (zero < 0)
            return false;
        *flags = zero ? US_ZERO : 0;
    }
    return true;
}

/* Cache entered, sheaf claimed; NULL with an exception. */
static void *take(struct sheaf *self, struct us_cache *core, unsigned flags)
{
    void *object = us_cache_alloc_from_sheaf(core, flags, self->core);
    if (!object)
        return PyErr_Format(PyExc_MemoryError,
                            "this sheaf of cache %U is empty: refill(n) it, or allocate from the "
                            "cache",
                            self->cache->name);
    return self->cache->record->constructor ? us_py_finish_constructed(self->cache, object)
                                            : object;
}

static PyObject *allocate(PyObject *op, const char *function, PyObject *const *args,
                          Py_ssize_t nargs, PyObject *kwnames, bool owned)
{
    struct sheaf *self = (struct sheaf *)op;
    struct us_py_call call;
    PyObject *result = NULL;
    unsigned flags;
    if (!read_zero(function, args, nargs, kwnames, &flags))
        return NULL;
    struct us_cache *core = enter(&call, self);
    if (!core)
        return NULL;
    void *object = take(self, core, flags);
    if (object) {
        result = owned ? us_py_object_new(self->cache, object, true) : PyLong_FromVoidPtr(object);
        if (!result)
            us_cache_free(core, object);
    }
    leave(&call, self);
    return result;
}

static PyObject *sheaf_alloc_address(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                                     PyObject *kwnames)
{
    return allocate(self, "alloc_address", args, nargs, kwnames, false);
}

static PyObject *sheaf_alloc(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                             PyObject *kwnames)
{
    return allocate(self, "alloc", args, nargs, kwnames, true);
}

/* ---- end ------------------------------------------------------------------------------------- */

/* Once is enough, and so it is when the cache is gone, the sheaf with it. */
static PyObject *sheaf_close(PyObject *op, PyObject *unused)
{
    struct sheaf *self = (struct sheaf *)op;
    struct us_py_call call;
    (void)unused;
    if (!is_alive(self))
        Py_RETURN_NONE;
    struct us_cache *core = enter(&call, self);
    if (!core)
        return NULL;
    us_cache_return_sheaf(core, self->core);
    settle(self, RETURNED);
    us_py_leave(&call);
    Py_RETURN_NONE;
}

static void sheaf_finalize(PyObject *op)
{
    struct sheaf *self = (struct sheaf *)op;
    if (self->cache && is_alive(self))
        us_py_warn_dropped(op, "%R was dropped unreturned: close it, or use it in a with block");
}

static void return_dropped(struct sheaf *self)
{
    struct us_py_call call;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    struct us_cache *core = us_py_enter_cache(&call, self->cache);
    if (core) {
        us_cache_return_sheaf(core, self->core);
        self->cache->record->dropped++;
        us_py_leave(&call);
    }
    PyErr_Restore(type, value, traceback);
}

static void sheaf_dealloc(PyObject *op)
{
    struct sheaf *self = (struct sheaf *)op;
    PyTypeObject *type = Py_TYPE(op);
    if (PyObject_CallFinalizerFromDealloc(op) < 0)
        return;
    PyObject_GC_UnTrack(op);
    if (self->cache && is_alive(self))
        return_dropped(self);
    Py_XDECREF(self->cache);
    type->tp_free(op);
    Py_DECREF(type);
}

static int sheaf_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((struct sheaf *)op)->cache);
    return 0;
}

/* ---- attributes ------------------------------------------------------------------------------ */

/* 0 once it is given back. */
static Py_ssize_t look(PyObject *op, size_t (*read)(const struct us_sheaf *))
{
    struct sheaf *self = (struct sheaf *)op;
    struct us_py_call call;
    if (!is_alive(self))
        return 0;
    if (!enter(&call, self))
        return -1;
    const size_t n = read(self->core);
    leave(&call, self);
    return (Py_ssize_t)n;
}

static Py_ssize_t sheaf_length(PyObject *self)
{
    return look(self, us_cache_sheaf_size);
}

static PyObject *as_number(Py_ssize_t n)
{
    return n < 0 ? NULL : PyLong_FromSsize_t(n);
}

static PyObject *get_size(PyObject *self, void *unused)
{
    (void)unused;
    return as_number(sheaf_length(self));
}

static PyObject *get_capacity(PyObject *self, void *unused)
{
    (void)unused;
    return as_number(look(self, us_cache_sheaf_capacity));
}

static PyObject *get_cache(PyObject *self, void *unused)
{
    (void)unused;
    return Py_NewRef(((struct sheaf *)self)->cache);
}

static PyObject *get_alive(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(is_alive((struct sheaf *)self));
}

static PyMethodDef sheaf_methods[] = {
    {"alloc_address", (PyCFunction)(void (*)(void))sheaf_alloc_address,
     METH_FASTCALL | METH_KEYWORDS, "alloc_address($self, /, *, zero=False)\n--\n\n"},
    {"alloc", (PyCFunction)(void (*)(void))sheaf_alloc, METH_FASTCALL | METH_KEYWORDS,
     "alloc($self, /, *, zero=False)\n--\n\n"},
    {"refill", sheaf_refill, METH_O, "refill($self, n, /)\n--\n\n"},
    {"close", sheaf_close, METH_NOARGS, "close($self, /)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef sheaf_getset[] = {
    {"size", get_size, NULL, "Objects in it.", NULL},
    {"capacity", get_capacity, NULL, "Objects it has room for.", NULL},
    {"cache", get_cache, NULL, "The cache it belongs to.", NULL},
    {"alive", get_alive, NULL, "False once returned, or once its cache is gone.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot sheaf_slots[] = {
    {Py_tp_dealloc, sheaf_dealloc},
    {Py_tp_finalize, sheaf_finalize},
    {Py_tp_traverse, sheaf_traverse},
    {Py_tp_methods, sheaf_methods},
    {Py_tp_getset, sheaf_getset},
    {Py_sq_length, sheaf_length},
    {0, NULL},
};

PyType_Spec us_py_sheaf_spec = {
    .name = US_PY_MODULE ".Sheaf",
    .basicsize = sizeof(struct sheaf),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = sheaf_slots,
};
