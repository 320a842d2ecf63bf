/* py_object.c - one owned object: freed once, lent to Python as a buffer meanwhile. */
#include "python/py_unislab.h"

#include <structmember.h>

enum ownership { OWNED, FREED, LENT /* to a constructor, for the time of its call */ };

struct object {
    PyObject ob_base;
    struct us_py_cache *cache;
    void *address;
    _Atomic int64_t exports;
    _Atomic int ownership;
};

PyObject *us_py_object_new(struct us_py_cache *cache, void *address, bool owned)
{
    PyTypeObject *type = (PyTypeObject *)cache->allocator->state->object_type;
    if (!type) {
        PyErr_SetString(PyExc_RuntimeError, "the interpreter is shutting down");
        return NULL;
    }
    struct object *self = (struct object *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->cache = (struct us_py_cache *)Py_NewRef(cache);
    self->address = address;
    atomic_store(&self->ownership, owned ? OWNED : LENT);
    return (PyObject *)self;
}

bool us_py_object_end_loan(PyObject *object)
{
    atomic_store(&((struct object *)object)->ownership, FREED);
    return atomic_load(&((struct object *)object)->exports) == 0;
}

/* ---- buffer ---------------------------------------------------------------------------------- */

static void count_export(struct object *self, int change)
{
    atomic_fetch_add(&self->exports, change);
    atomic_fetch_add(&self->cache->exports, change);
}

/* Counts itself first and looks at the ownership then; free() does it the other way round, so that
 * one of the two sees the other. */
static int lend(struct object *self, Py_buffer *view, int flags)
{
    count_export(self, 1);
    if (atomic_load(&self->ownership) != FREED &&
        PyBuffer_FillInfo(view, (PyObject *)self, self->address, (Py_ssize_t)self->cache->size, 0,
                          flags) == 0)
        return 0;
    count_export(self, -1);
    if (!PyErr_Occurred())
        PyErr_SetString(PyExc_RuntimeError, "this object was freed: its memory is no longer yours");
    return -1;
}

static int object_getbuffer(PyObject *op, Py_buffer *view, int flags)
{
    struct object *self = (struct object *)op;
    struct us_py_call call;
    view->obj = NULL;
    if (atomic_load(&self->ownership) == LENT) /* within the call that allocates */
        return lend(self, view, flags);
    if (!us_py_enter_cache(&call, self->cache))
        return -1;
    int result = lend(self, view, flags);
    us_py_leave(&call);
    return result;
}

static void object_releasebuffer(PyObject *op, Py_buffer *view)
{
    (void)view;
    count_export((struct object *)op, -1);
}

typedef enum us_status us_py_free_fn(struct us_cache *, void *, struct us_error *);

/* ---- free ------------------------------------------------------------------------------------ */

static PyObject *raise_freed_twice(struct object *self)
{
    const struct us_cache *core = self->cache->core;
    const struct us_slab *slab = us_cache_slab(core, self->address);
    struct us_error error = {.status = US_ECORRUPT};
    char where[40] = "";
    if (slab)
        PyOS_snprintf(where, sizeof where, ", slab %p", us_slab_base(core->slabs, slab));
    PyOS_snprintf(error.text, sizeof error.text,
                  "cache '%s', object %p%s: found an Object that was freed already, expected one "
                  "free of an owned object",
                  core->name, self->address, where);
    return us_py_raise_misuse(self->cache->allocator->state, &error);
}

/* Takes the ownership away; false with an exception. */
static bool claim(struct object *self)
{
    int owned = OWNED;
    if (!atomic_compare_exchange_strong(&self->ownership, &owned, FREED)) {
        if (owned == LENT)
            PyErr_SetString(PyExc_RuntimeError,
                            "a constructor cannot free the object it constructs");
        else
            raise_freed_twice(self);
        return false;
    }
    const long long exports = atomic_load(&self->exports);
    if (exports == 0)
        return true;
    atomic_store(&self->ownership, OWNED);
    PyErr_Format(PyExc_BufferError,
                 "cannot free %R while %lld exported view(s) of it exist; release them first", self,
                 exports);
    return false;
}

static PyObject *give_back(PyObject *op, us_py_free_fn *give)
{
    struct object *self = (struct object *)op;
    struct us_py_call call;
    struct us_error error;
    struct us_cache *core = us_py_enter_cache(&call, self->cache);
    if (!core)
        return NULL;
    PyObject *result = NULL;
    if (claim(self)) {
        if (give(core, self->address, &error) == US_OK)
            result = Py_NewRef(Py_None);
        else
            us_py_raise(self->cache->allocator->state, &error, NULL);
    }
    us_py_leave(&call);
    return result;
}

PyObject *us_py_object_free(PyObject *op)
{
    return give_back(op, us_cache_free_checked);
}

PyObject *us_py_object_free_rcu(struct us_py_cache *cache, PyObject *op)
{
    struct object *self = (struct object *)op;
    if (self->cache == cache)
        return give_back(op, us_cache_free_rcu);
    return PyErr_Format(PyExc_ValueError, "%R is no object of cache %U", op, cache->name);
}

static PyObject *object_free(PyObject *self, PyObject *unused)
{
    (void)unused;
    return us_py_object_free(self);
}

static bool is_alive(struct object *self)
{
    return atomic_load(&self->ownership) != FREED && !atomic_load(&self->cache->life.ended);
}

/* ---- end ------------------------------------------------------------------------------------- */

void us_py_warn_dropped(PyObject *op, const char *format)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (PyErr_ResourceWarning(op, 1, format, op) < 0)
        PyErr_WriteUnraisable(op);
    PyErr_Restore(type, value, traceback);
}

/* Says that a live object is dropped; deallocation then frees it. */
static void object_finalize(PyObject *op)
{
    struct object *self = (struct object *)op;
    if (atomic_load(&self->ownership) != OWNED || !is_alive(self))
        return;
    us_py_warn_dropped(op, "%R was dropped while live: free it, or use it in a with block");
}

static void free_dropped(struct object *self)
{
    struct us_py_call call;
    struct us_error error;
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    struct us_cache *core = us_py_enter_cache(&call, self->cache);
    if (core) {
        if (us_cache_free_checked(core, self->address, &error) == US_OK)
            self->cache->record->dropped++;
        us_py_leave(&call);
    }
    PyErr_Restore(type, value, traceback);
}

static void object_dealloc(PyObject *op)
{
    struct object *self = (struct object *)op;
    PyTypeObject *type = Py_TYPE(op);
    if (PyObject_CallFinalizerFromDealloc(op) < 0)
        return;
    PyObject_GC_UnTrack(op);
    if (self->cache && atomic_load(&self->ownership) == OWNED && is_alive(self))
        free_dropped(self);
    Py_XDECREF(self->cache);
    type->tp_free(op);
    Py_DECREF(type);
}

static int object_traverse(PyObject *op, visitproc visit, void *arg)
{
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(((struct object *)op)->cache);
    return 0;
}

/* ---- attributes ------------------------------------------------------------------------------ */

static PyObject *get_address(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromVoidPtr(((struct object *)self)->address);
}

static PyObject *get_cache(PyObject *self, void *unused)
{
    (void)unused;
    return Py_NewRef(((struct object *)self)->cache);
}

static PyObject *get_size(PyObject *self, void *unused)
{
    (void)unused;
    return PyLong_FromSize_t(((struct object *)self)->cache->size);
}

static PyObject *get_alive(PyObject *self, void *unused)
{
    (void)unused;
    return PyBool_FromLong(is_alive((struct object *)self));
}

static Py_ssize_t object_length(PyObject *self)
{
    return (Py_ssize_t)((struct object *)self)->cache->size;
}

static PyMethodDef object_methods[] = {
    {"free", object_free, METH_NOARGS, "free($self, /)\n--\n\n"},
    {NULL, NULL, 0, NULL},
};

static PyGetSetDef object_getset[] = {
    {"address", get_address, NULL, "Address of the first byte.", NULL},
    {"cache", get_cache, NULL, "The cache the object belongs to.", NULL},
    {"size", get_size, NULL, "Usable bytes.", NULL},
    {"alive", get_alive, NULL, "False once freed, or once its cache is gone.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot object_slots[] = {
    {Py_tp_dealloc, object_dealloc},
    {Py_tp_finalize, object_finalize},
    {Py_tp_traverse, object_traverse},
    {Py_tp_methods, object_methods},
    {Py_tp_getset, object_getset},
    {Py_bf_getbuffer, object_getbuffer},
    {Py_bf_releasebuffer, object_releasebuffer},
    {Py_sq_length, object_length},
    {0, NULL},
};

PyType_Spec us_py_object_spec = {
    .name = US_PY_MODULE ".Object",
    .basicsize = sizeof(struct object),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_DISALLOW_INSTANTIATION,
    .slots = object_slots,
};
