/* py_cache.c - a cache: the calls on single objects, its attributes, its end.
 *
 * alloc_address() and free() are the hot ones. In the ordinary case each is two branches, the call
 * into the core and the conversion of one integer; all else is in functions of its own.
 */
#include "python/py_unislab.h"

#include <structmember.h>

static struct us_py_state *state_of(const struct us_py_cache *self)
{
    return self->allocator->state;
}

/* ---- allocation ------------------------------------------------------------------------------ */

/* Objects of kmalloc-large differ in size. */
bool us_py_hands_out(const struct us_py_cache *self)
{
    if (self->core != self->allocator->core->large)
        return true;
    PyErr_SetString(PyExc_TypeError,
                    "kmalloc-large has no size of its own: call allocator.kmalloc(size)");
    return false;
}

/* The general form; NULL with an exception. */
static void *alloc_placed(struct us_py_cache *self, const char *function, PyObject *const *args,
                          Py_ssize_t nargs, PyObject *kwnames)
{
    struct us_py_call call;
    unsigned flags;
    int node;
    if (nargs) {
        PyErr_Format(PyExc_TypeError, "%s() takes no positional arguments (%zd given)", function,
                     nargs);
        return NULL;
    }
    struct us_cache *core = us_py_enter_cache(&call, self);
    if (!core)
        return NULL;
    void *object = NULL;
    if (us_py_hands_out(self) &&
        us_py_placement(function, args, kwnames, core->machine, &flags, &node)) {
        if (self->record->constructor)
            object = us_py_alloc_constructed(self, flags, node);
        else if ((object = us_cache_alloc_node(core, flags, node)) == NULL)
            us_py_raise_failure(state_of(self), core, 1, self->size);
    }
    us_py_leave(&call);
    return object;
}

/* Frees what could not be handed out. */
static PyObject *take_back(struct us_py_cache *self, void *object)
{
    struct us_py_call call;
    struct us_cache *core = us_py_enter_cache(&call, self);
    if (core) {
        us_cache_free(core, object);
        us_py_leave(&call);
    }
    return NULL;
}

static US_NOINLINE PyObject *alloc_address_carefully(struct us_py_cache *self,
                                                     PyObject *const *args, Py_ssize_t nargs,
                                                     PyObject *kwnames)
{
    void *object = alloc_placed(self, "alloc_address", args, nargs, kwnames);
    if (!object)
        return NULL;
    PyObject *address = PyLong_FromVoidPtr(object);
    return address ? address : take_back(self, object);
}

static PyObject *cache_alloc_address(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                     PyObject *kwnames)
{
    struct us_py_cache *self = (struct us_py_cache *)op;
    struct us_cache *core = self->hot;
    if (US_UNLIKELY(!core || nargs || kwnames))
        return alloc_address_carefully(self, args, nargs, kwnames);
    void *object = us_cache_alloc(core);
    if (US_UNLIKELY(!object))
        return us_py_raise_failure(state_of(self), core, 1, self->size);
    if ((long)(uintptr_t)object == self->freed_address)
        return Py_NewRef(self->freed);
    PyObject *address = PyLong_FromLong((long)(uintptr_t)object); /* user space: below 2^63 */
    return US_LIKELY(address) ? address : take_back(self, object);
}

static PyObject *cache_alloc(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                             PyObject *kwnames)
{
    struct us_py_cache *self = (struct us_py_cache *)op;
    void *address = alloc_placed(self, "alloc", args, nargs, kwnames);
    if (!address)
        return NULL;
    PyObject *object = us_py_object_new(self, address, true);
    return object ? object : take_back(self, address);
}

/* ---- free ------------------------------------------------------------------------------------ */

/* Any integer, or an owned Object of this cache. */
static US_NOINLINE PyObject *free_carefully(struct us_py_cache *self, PyObject *const *args,
                                            Py_ssize_t nargs)
{
    struct us_py_call call;
    struct us_error error;
    uint64_t address;
    if (nargs != 1) {
        PyErr_Format(PyExc_TypeError, "free() takes one address (%zd given)", nargs);
        return NULL;
    }
    if (Py_IS_TYPE(args[0], (PyTypeObject *)state_of(self)->object_type)) {
        PyErr_SetString(PyExc_TypeError,
                        "cache.free() takes an address; an owned Object is freed by object.free()");
        return NULL;
    }
    if (!us_py_address(args[0], &address))
        return NULL;
    struct us_cache *core = us_py_enter_cache(&call, self);
    if (!core)
        return NULL;
    PyObject *result = Py_None;
    if (us_cache_free_checked(core, (void *)(uintptr_t)address, &error) != US_OK)
        result = us_py_raise_misuse(state_of(self), &error);
    us_py_leave(&call);
    return Py_XNewRef(result);
}

static PyObject *cache_free(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    struct us_py_cache *self = (struct us_py_cache *)op;
    struct us_cache *core = self->hot;
    if (US_UNLIKELY(!core || nargs != 1 || !PyLong_CheckExact(args[0])))
        return free_carefully(self, args, nargs);
    struct us_error error;
    const long address = PyLong_AsLong(args[0]); /* faster than the unsigned conversions */
    if (US_UNLIKELY(address < 0)) {
        PyErr_Clear();
        return free_carefully(self, args, nargs);
    }
    if (US_UNLIKELY(us_cache_free_checked(core, (void *)(uintptr_t)address, &error) != US_OK))
        return us_py_raise_misuse(state_of(self), &error);
    self->freed_address = address;
    Py_SETREF(self->freed, Py_NewRef(args[0]));
    Py_RETURN_NONE;
}

static PyObject *cache_free_rcu(PyObject *op, PyObject *value)
{
    struct us_py_cache *self = (struct us_py_cache *)op;
    struct us_py_call call;
    struct us_error error;
    uint64_t address;
    if (Py_IS_TYPE(value, (PyTypeObject *)state_of(self)->object_type))
        return us_py_object_free_rcu(self, value);
    if (!us_py_address(value, &address))
        return NULL;
    struct us_cache *core = us_py_enter_cache(&call, self);
    if (!core)
        return NULL;
    PyObject *result = Py_None;
    if (us_cache_free_rcu(core, (void *)(uintptr_t)address, &error) != US_OK)
        result = us_py_raise(state_of(self), &error, NULL);
    us_py_leave(&call);
    return Py_XNewRef(result);
}

/* What the benchmark compares the two with. */
PyObject *us_py_fastcall_nothing(PyObject *self, PyObject *const *args, Py_ssize_t nargs)
{
    (void)self, (void)args, (void)nargs;
    Py_RETURN_NONE;
}

/* ---- work on the whole cache ----------------------------------------------------------------- */

static PyObject *cache_shrink(PyObject *op, PyObject *unused)
{
    struct us_py_call call;
    (void)unused;
    struct us_cache *core = us_py_enter_cache(&call, (struct us_py_cache *)op);
    if (!core)
        return NULL;
    us_py_release(&call);
    uint64_t bytes = us_cache_shrink(core);
    us_py_acquire(&call);
    us_py_leave(&call);
    return PyLong_FromUnsignedLongLong(bytes);
}

static PyObject *cache_expire(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"node", NULL};
    PyObject *node_object = Py_None;
    struct us_py_call call;
    int node;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:expire", names, &node_object))
        return NULL;
    struct us_cache *core = us_py_enter_cache(&call, (struct us_py_cache *)op);
    if (!core)
        return NULL;
    PyObject *result = NULL;
    if (us_py_node(node_object, core->machine, &node)) {
        us_py_release(&call);
        uint64_t bytes = us_cache_expire(core, node);
        us_py_acquire(&call);
        result = PyLong_FromUnsignedLongLong(bytes);
    }
    us_py_leave(&call);
    return result;
}

/* ---- end ------------------------------------------------------------------------------------- */

/* Within an end of this cache; the number of views of its objects, which forbid it. */
static int64_t destroy_now(struct us_py_cache *self, bool force, struct us_error *error)
{
    const int64_t exports = atomic_load(&self->exports);
    struct us_cache *hot = self->hot;
    struct us_py_call unlocked;
    error->status = US_OK;
    if (exports > 0)
        return exports;
    self->hot = NULL;
    us_py_release(&unlocked);
    error->status = us_cache_end_name(self->core, self->record->id, force, error);
    us_py_acquire(&unlocked);
    if (error->status == US_OK)
        self->core = NULL;
    else
        self->hot = hot;
    return 0;
}

/* Ends it, lets others go on, and only then does what may run Python code. */
static PyObject *destroy(struct us_py_cache *self, bool force)
{
    struct us_py_record *record;
    struct us_error error;
    if (!us_py_end_begin(&self->life, NULL, "destroy the cache")) {
        if (!PyErr_Occurred())
            PyErr_Format(PyExc_RuntimeError, "cache %U was already destroyed", self->name);
        return NULL;
    }
    const int64_t exports = destroy_now(self, force, &error);
    const bool gone = exports == 0 && error.status == US_OK;
    record = gone ? self->record : NULL;
    if (record) {
        self->dropped = record->dropped;
        self->record = NULL;
    }
    us_py_end_settle(&self->life, gone);
    if (exports > 0)
        return PyErr_Format(PyExc_BufferError,
                            "cannot destroy cache %U while %lld exported view(s) of its objects "
                            "exist; release them first",
                            self->name, (long long)exports);
    if (!gone)
        return us_py_raise(state_of(self), &error, state_of(self)->live_error);
    us_py_record_drop(self->allocator, record);
    Py_RETURN_NONE;
}

static PyObject *cache_destroy(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"force", NULL};
    struct us_py_cache *self = (struct us_py_cache *)op;
    struct us_py_call call;
    int force = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|p:destroy", names, &force))
        return NULL;
    if (self->general) {
        PyErr_Format(PyExc_ValueError, "%U is a general cache: it lives as long as its allocator",
                     self->name);
        return NULL;
    }
    if (!us_py_enter_allocator(&call, self->allocator))
        return NULL;
    PyObject *result = destroy(self, force);
    us_py_leave(&call);
    return result;
}

static void cache_dealloc(PyObject *op)
{
    struct us_py_cache *self = (struct us_py_cache *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (self->weakrefs)
        PyObject_ClearWeakRefs(op);
    Py_XDECREF(self->name);
    Py_XDECREF(self->freed);
    Py_XDECREF(self->allocator);
    type->tp_free(op);
    Py_DECREF(type);
}

static int cache_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((struct us_py_cache *)op)->allocator);
    return 0;
}

/* ---- attributes ------------------------------------------------------------------------------ */

static PyObject *get_allocator(PyObject *self, void *unused)
{
    (void)unused;
    return Py_NewRef(((struct us_py_cache *)self)->allocator);
}

static PyObject *get_alive(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(!atomic_load(&((struct us_py_cache *)self)->life.ended));
}

static PyObject *get_dropped(PyObject *op, void *unused)
{
    struct us_py_cache *self = (struct us_py_cache *)op;
    (void)unused;
    return PyLong_FromUnsignedLongLong(self->record ? self->record->dropped : self->dropped);
}

static PyObject *get_constructor(PyObject *op, void *unused)
{
    struct us_py_record *record = ((struct us_py_cache *)op)->record;
    (void)unused;
    return Py_NewRef(record && record->constructor ? record->constructor : Py_None);
}

#define DOC_ONLY_SIGNATURE(name, arguments) name "($self" arguments ")\n--\n\n"

static PyMethodDef cache_methods[] = {
    {"alloc_address", (PyCFunction)(void (*)(void))cache_alloc_address,
     METH_FASTCALL | METH_KEYWORDS,
     DOC_ONLY_SIGNATURE("alloc_address", ", /, *, node=None, zero=False, thisnode=False")},
    {"free", (PyCFunction)(void (*)(void))cache_free, METH_FASTCALL,
     DOC_ONLY_SIGNATURE("free", ", address, /")},
    {"free_rcu", cache_free_rcu, METH_O, DOC_ONLY_SIGNATURE("free_rcu", ", what, /")},
    {"alloc", (PyCFunction)(void (*)(void))cache_alloc, METH_FASTCALL | METH_KEYWORDS,
     DOC_ONLY_SIGNATURE("alloc", ", /, *, node=None, zero=False, thisnode=False")},
    {"alloc_bulk", (PyCFunction)(void (*)(void))us_py_cache_alloc_bulk,
     METH_FASTCALL | METH_KEYWORDS,
     DOC_ONLY_SIGNATURE("alloc_bulk", ", n, /, *, node=None, zero=False, thisnode=False")},
    {"free_bulk", (PyCFunction)(void (*)(void))us_py_cache_free_bulk, METH_FASTCALL,
     DOC_ONLY_SIGNATURE("free_bulk", ", addresses, /")},
    {"prefill_sheaf", us_py_cache_prefill_sheaf, METH_O,
     DOC_ONLY_SIGNATURE("prefill_sheaf", ", n, /")},
    {"shrink", cache_shrink, METH_NOARGS, DOC_ONLY_SIGNATURE("shrink", ", /")},
    {"expire", (PyCFunction)(void (*)(void))cache_expire, METH_VARARGS | METH_KEYWORDS,
     DOC_ONLY_SIGNATURE("expire", ", /, node=None")},
    {"destroy", (PyCFunction)(void (*)(void))cache_destroy, METH_VARARGS | METH_KEYWORDS,
     DOC_ONLY_SIGNATURE("destroy", ", /, force=False")},
    {"_noop", (PyCFunction)(void (*)(void))us_py_fastcall_nothing, METH_FASTCALL,
     "_noop($self, /, *args)\n--\n\nDoes nothing: the price of a call, for benchmarks."},
    {"_stats", us_py_cache_stats, METH_O,
     "_stats($self, exact, /)\n--\n\nCounters as words, row by CPU."},
    {"_account", us_py_cache_account, METH_NOARGS, "_account($self, /)\n--\n\nByte accounts."},
    {"_snapshot", us_py_cache_snapshot, METH_NOARGS,
     "_snapshot($self, /)\n--\n\nRows of slabs and of queues."},
    {"_validate", us_py_cache_validate, METH_NOARGS,
     "_validate($self, /)\n--\n\nResults of the detailed check."},
    {"_names", us_py_cache_names, METH_NOARGS,
     "_names($self, /)\n--\n\nAll names of the cache, oldest first."},
    {"_live", us_py_cache_live, METH_NOARGS, "_live($self, /)\n--\n\nAddresses in use as words."},
    {"_tunables", us_py_cache_tunables, METH_NOARGS,
     "_tunables($self, /)\n--\n\nRows of the tunables and their values."},
    {"_tunable_get", us_py_cache_tunable_get, METH_O,
     "_tunable_get($self, name, /)\n--\n\nValue and text of a tunable."},
    {"_tunable_set", (PyCFunction)(void (*)(void))us_py_cache_tunable_set, METH_FASTCALL,
     "_tunable_set($self, name, text, /)\n--\n\nSets a tunable on the live cache."},
    {NULL, NULL, 0, NULL},
};

#define MEMBER(name, type, field, doc) \
    {name, type, offsetof(struct us_py_cache, field), READONLY, doc}
static PyMemberDef cache_members[] = {
    MEMBER("name", T_OBJECT_EX, name, "Name of the cache."),
    MEMBER("size", T_PYSSIZET, size, "Usable bytes of an object."),
    MEMBER("stride", T_PYSSIZET, stride, "Bytes from one object to the next."),
    MEMBER("align", T_PYSSIZET, align, "Alignment of objects in bytes."),
    MEMBER("order", T_UINT, order, "A slab has 2**order pages."),
    MEMBER("objects_per_slab", T_UINT, objects, "Objects in a slab of that order."),
    MEMBER("general", T_BOOL, general, "True for the caches behind kmalloc."),
    MEMBER("_flags", T_UINT, flags, "Flags as a number."),
    {"__weaklistoffset__", T_PYSSIZET, offsetof(struct us_py_cache, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef cache_getset[] = {
    {"allocator", get_allocator, NULL, "The allocator the cache belongs to.", NULL},
    {"alive", get_alive, NULL, "False once destroyed, or once the allocator is closed.", NULL},
    {"dropped", get_dropped, NULL,
     "Objects and sheaves that were dropped while live, and given back.", NULL},
    {"constructor", get_constructor, NULL, "The callable given as constructor, or None.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot cache_slots[] = {
    {Py_tp_dealloc, cache_dealloc}, {Py_tp_traverse, cache_traverse},
    {Py_tp_methods, cache_methods}, {Py_tp_members, cache_members},
    {Py_tp_getset, cache_getset},   {0, NULL},
};

PyType_Spec us_py_cache_spec = {
    .name = US_PY_MODULE ".Cache",
    .basicsize = sizeof(struct us_py_cache),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = cache_slots,
};
