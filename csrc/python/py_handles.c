/* py_handles.c - caches of an allocator: their records, and the Python handles made on demand. */
#include "python/py_unislab.h"

#include <limits.h>
#include <string.h>

/* Critical sections exist from 3.13; before, the GIL is what they would take. */
#if PY_VERSION_HEX < 0x030d0000
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION()         }
#endif

typedef struct us_py_allocator Allocator;

/* ---- records and handles --------------------------------------------------------------------- */

#define NO_ID UINT_MAX /* of a record whose cache is being made */

static struct us_py_record *add_record(Allocator *self, unsigned id)
{
    struct us_py_record *record = PyMem_Calloc(1, sizeof *record);
    if (!record) {
        PyErr_NoMemory();
        return NULL;
    }
    record->id = id;
    record->next = self->records;
    self->records = record;
    return record;
}

void us_py_record_drop(Allocator *self, struct us_py_record *record)
{
    struct us_py_record **link = &self->records;
    while (*link && *link != record)
        link = &(*link)->next;
    if (*link)
        *link = record->next;
    Py_XDECREF(record->handle);
    Py_XDECREF(record->constructor);
    Py_XDECREF(record->failed);
    PyMem_Free(record);
}

static struct us_py_record *find_record(const Allocator *self, unsigned id)
{
    struct us_py_record *record = self->records;
    while (record && record->id != id)
        record = record->next;
    return record;
}

/* The handle of a record as a new reference; NULL when it is gone. */
struct us_py_cache *us_py_live_handle(const struct us_py_record *record)
{
    if (!record || !record->handle)
        return NULL;
#if PY_VERSION_HEX >= 0x030d0000
    PyObject *handle = NULL;
    return PyWeakref_GetRef(record->handle, &handle) > 0 ? (struct us_py_cache *)handle : NULL;
#else
    PyObject *handle = PyWeakref_GetObject(record->handle);
    return handle == Py_None ? NULL : (struct us_py_cache *)Py_NewRef(handle);
#endif
}

/* What never changes is copied, so that it can be told afterwards. */
static bool fill_handle(struct us_py_cache *self, struct us_cache *cache, unsigned id,
                        const char *name)
{
    self->core = cache;
    self->size = cache->size;
    self->stride = cache->geometry.stride;
    self->align = cache->geometry.align;
    self->order = cache->geometry.order;
    self->objects = cache->geometry.objects;
    self->flags = cache->flags;
    self->general = (cache->general || cache == self->allocator->core->large) && id == cache->id;
    self->name = PyUnicode_DecodeUTF8(name, (Py_ssize_t)strlen(name), "replace");
    return self->name != NULL;
}

void us_py_set_hot(struct us_py_cache *self)
{
#ifndef Py_GIL_DISABLED
    if (!self->record->constructor && self->core != self->allocator->core->large)
        self->hot = self->core;
#else
    (void)self;
#endif
}

/* Gives a handle its record, made if there is none. A destroyer always holds a handle, so what has
 * none is not being destroyed: with the GIL held the cache stays. */
static bool adopt_record(struct us_py_cache *self, struct us_cache *cache, unsigned id)
{
    struct us_py_record *record = find_record(self->allocator, id);
    if (!record && cache->id == id && cache->options.constructor == us_py_constructor) {
        record = cache->options.constructor_arg; /* its maker has not come back yet */
        record->id = id;
    }
    if (!record && !(record = add_record(self->allocator, id)))
        return false;
    PyObject *weak = PyWeakref_NewRef((PyObject *)self, NULL);
    if (!weak)
        return false;
    Py_XSETREF(record->handle, weak);
    self->record = record;
    us_py_set_hot(self);
    return true;
}

static PyObject *handle_of(Allocator *owner, struct us_cache *cache, unsigned id)
{
    PyTypeObject *type = (PyTypeObject *)owner->state->cache_type;
    char name[US_NAME_MAX];
    PyObject *known = (PyObject *)us_py_live_handle(find_record(owner, id));
    if (known)
        return known;
    struct us_py_cache *self = (struct us_py_cache *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->allocator = (Allocator *)Py_NewRef(owner);
    self->freed = Py_NewRef(Py_None); /* at address 0, which no object has */
    if (!us_cache_name(owner->core, cache, id, name) || !fill_handle(self, cache, id, name) ||
        !adopt_record(self, cache, id))
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* A merge may have made the objects of a cache larger: all that share it say so. */
static void renew_sizes(Allocator *owner, const struct us_cache *cache)
{
    for (struct us_py_record *record = owner->records; record; record = record->next) {
        struct us_py_cache *handle = us_py_live_handle(record);
        if (handle && handle->core == cache)
            handle->size = cache->size;
        Py_XDECREF(handle);
    }
}

PyObject *us_py_cache_handle(Allocator *owner, struct us_cache *cache, unsigned id)
{
    PyObject *handle;
    Py_BEGIN_CRITICAL_SECTION(owner);
    handle = handle_of(owner, cache, id);
    if (handle)
        renew_sizes(owner, cache);
    Py_END_CRITICAL_SECTION();
    return handle;
}

/* ---- caches
 * -------------------------------------------------------------------------------------- */

static bool fill_pairs(PyObject *pairs, const char **names, const char **values)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pairs); i++)
        if (!us_py_pair_texts(pairs, i, &names[i], &values[i]))
            return false;
    return true;
}

/* Makes the cache; NULL with an exception. */
static struct us_cache *create_cache(Allocator *self, struct us_py_call *call,
                                     struct us_cache_options *options, PyObject *callable,
                                     const char **names, const char **values, size_t n,
                                     unsigned *id)
{
    struct us_error error;
    struct us_py_record *record = NULL;
    if (callable != Py_None) {
        record = add_record(self, NO_ID);
        if (!record)
            return NULL;
        record->constructor = Py_NewRef(callable);
        options->constructor = us_py_constructor;
        options->constructor_arg = record;
        options->constructor_suspends = true;
    }
    us_py_release(call);
    struct us_cache *cache =
        us_cache_create_numbered(self->core, options, names, values, n, id, &error);
    us_py_acquire(call);
    if (!cache) {
        us_py_raise(self->state, &error, NULL);
        if (record)
            us_py_record_drop(self, record);
    } else if (record) {
        record->id = *id;
    }
    return cache;
}

PyObject *us_py_allocator_create_cache(PyObject *op, PyObject *args)
{
    Allocator *self = (Allocator *)op;
    struct us_cache_options options = {0};
    struct us_py_call call;
    PyObject *callable, *pairs;
    Py_ssize_t size, align, pattern_bytes;
    const char *pattern;
    if (!PyArg_ParseTuple(args, "snnIy#OO!:_create_cache", &options.name, &size, &align,
                          &options.flags, &pattern, &pattern_bytes, &callable, &PyList_Type,
                          &pairs))
        return NULL;
    options.size = (size_t)size;
    options.align = (size_t)align;
    options.pattern = pattern_bytes ? pattern : NULL;
    options.pattern_bytes = (size_t)pattern_bytes;
    const size_t n = (size_t)PyList_GET_SIZE(pairs);
    const char **names = PyMem_New(const char *, 2 * n + 1);
    if (!names)
        return PyErr_NoMemory();
    PyObject *handle = NULL;
    if (fill_pairs(pairs, names, names + n) && us_py_enter_allocator(&call, self)) {
        unsigned id;
        struct us_cache *cache =
            create_cache(self, &call, &options, callable, names, names + n, n, &id);
        if (cache)
            handle = us_py_cache_handle(self, cache, id);
        if (cache && !handle && !PyErr_Occurred())
            PyErr_Format(PyExc_RuntimeError, "cache '%s' was destroyed at once by another thread",
                         options.name);
        us_py_leave(&call);
    }
    PyMem_Free(names);
    return handle;
}

PyObject *us_py_allocator_named(PyObject *op, PyObject *name_object)
{
    Allocator *self = (Allocator *)op;
    struct us_py_call call;
    unsigned id;
    const char *name = PyUnicode_AsUTF8(name_object);
    if (!name)
        return NULL;
    struct us_allocator *core = us_py_enter_allocator(&call, self);
    if (!core)
        return NULL;
    struct us_cache *cache = us_cache_named(core, name, &id);
    PyObject *handle = cache ? us_py_cache_handle(self, cache, id) : NULL;
    us_py_leave(&call);
    return handle || PyErr_Occurred() ? handle : Py_NewRef(Py_None);
}

struct listed {
    struct us_cache *cache;
    unsigned id;
};

/* The caches at this moment, newest first, PyMem memory; NULL with an exception. */
static struct listed *list_caches(struct us_allocator *core, size_t *n)
{
    const size_t room = core->ncaches + 64u;
    struct us_flight flight;
    struct listed *all = PyMem_New(struct listed, room);
    *n = 0;
    if (!all) {
        PyErr_NoMemory();
        return NULL;
    }
    us_flight_enter(core->machine, &flight);
    for (struct us_cache *c = core->caches; c && *n < room; c = c->next)
        all[(*n)++] = (struct listed){c, us_cache_number(c)};
    us_flight_leave(&flight);
    return all;
}

/* Handles of all caches, oldest first. */
PyObject *us_py_allocator_caches(PyObject *op, PyObject *unused)
{
    Allocator *self = (Allocator *)op;
    struct us_py_call call;
    size_t n;
    (void)unused;
    struct us_allocator *core = us_py_enter_allocator(&call, self);
    if (!core)
        return NULL;
    struct listed *all = list_caches(core, &n);
    PyObject *list = all ? PyList_New(0) : NULL;
    while (list && n > 0) {
        n--;
        PyObject *handle = us_py_cache_handle(self, all[n].cache, all[n].id);
        if (handle ? PyList_Append(list, handle) < 0 : PyErr_Occurred() != NULL)
            Py_CLEAR(list);
        Py_XDECREF(handle);
    }
    PyMem_Free(all);
    us_py_leave(&call);
    return list;
}
