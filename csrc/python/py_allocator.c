/* py_allocator.c - an allocator: its life, its caches, general allocations, work on all caches. */
#include "python/py_unislab.h"
#include "slab/mempolicy.h"

#include <limits.h>
#include <string.h>
#include <structmember.h>

/* Critical sections exist from 3.13; before, the GIL is what they would take. */
#if PY_VERSION_HEX < 0x030d0000
#define Py_BEGIN_CRITICAL_SECTION(object) {
#define Py_END_CRITICAL_SECTION() }
#endif

typedef struct us_py_allocator Allocator;

/* ---- records and handles ----------------------------------------------------------------------- */

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
static struct us_py_cache *live_handle(const struct us_py_record *record)
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

/* True while the cache with this id is in the list. Inside a flight the list stands still. */
static bool is_listed(struct us_allocator *core, const struct us_cache *cache, unsigned id)
{
    struct us_flight flight;
    us_flight_enter(core->machine, &flight);
    const struct us_cache *c = core->caches;
    while (c && c != cache)
        c = c->next;
    bool listed = c && c->id == id;
    us_flight_leave(&flight);
    return listed;
}

/* What never changes is copied, so that it can be told afterwards. */
static bool fill_handle(struct us_py_cache *self, struct us_cache *cache)
{
    self->core = cache;
    self->size = cache->size;
    self->stride = cache->geometry.stride;
    self->align = cache->geometry.align;
    self->order = cache->geometry.order;
    self->objects = cache->geometry.objects;
    self->flags = cache->flags;
    self->general = cache->general || cache == self->allocator->core->large;
    self->name = PyUnicode_DecodeUTF8(cache->name, (Py_ssize_t)strlen(cache->name), "replace");
    return self->name != NULL;
}

static void set_hot(struct us_py_cache *self)
{
#ifndef Py_GIL_DISABLED
    if (!self->record->constructor && self->core != self->allocator->core->large)
        self->hot = self->core;
#else
    (void)self;
#endif
}

/* Gives a handle its record, made if there is none. A destroyer always holds a handle, so what has none
 * is not being destroyed: with the GIL held the cache stays. */
static bool adopt_record(struct us_py_cache *self, struct us_cache *cache, unsigned id)
{
    struct us_py_record *record = find_record(self->allocator, id);
    if (!record && cache->options.constructor == us_py_constructor) {
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
    set_hot(self);
    return true;
}

static PyObject *handle_of(Allocator *owner, struct us_cache *cache, unsigned id)
{
    PyTypeObject *type = (PyTypeObject *)owner->state->cache_type;
    PyObject *known = (PyObject *)live_handle(find_record(owner, id));
    if (known)
        return known;
    struct us_py_cache *self = (struct us_py_cache *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    self->allocator = (Allocator *)Py_NewRef(owner);
    self->freed = Py_NewRef(Py_None); /* at address 0, which no object has */
    if (!is_listed(owner->core, cache, id) || !fill_handle(self, cache) ||
        !adopt_record(self, cache, id))
        Py_CLEAR(self);
    return (PyObject *)self;
}

PyObject *us_py_cache_handle(Allocator *owner, struct us_cache *cache, unsigned id)
{
    PyObject *handle;
    Py_BEGIN_CRITICAL_SECTION(owner);
    handle = handle_of(owner, cache, id);
    Py_END_CRITICAL_SECTION();
    return handle;
}

/* ---- the module's list of open allocators ------------------------------------------------------- */

static void list_add(Allocator *self)
{
    struct us_py_state *state = self->state;
    pthread_mutex_lock(&state->allocators_lock);
    self->next = state->allocators;
    self->link = &state->allocators;
    if (self->next)
        self->next->link = &self->next;
    state->allocators = self;
    pthread_mutex_unlock(&state->allocators_lock);
}

static void list_remove(Allocator *self)
{
    struct us_py_state *state = self->state;
    pthread_mutex_lock(&state->allocators_lock);
    if (self->link) {
        *self->link = self->next;
        if (self->next)
            self->next->link = self->link;
        self->link = NULL;
    }
    pthread_mutex_unlock(&state->allocators_lock);
}

/* ---- making ------------------------------------------------------------------------------------ */

/* A tuple of numbers as malloc'ed array; NULL with an exception (or when the tuple is None). */
static unsigned *numbers(PyObject *tuple, unsigned *n)
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

static unsigned count_of(const unsigned *number, unsigned n)
{
    unsigned count = 0;
    for (unsigned i = 0; i < n; i++)
        if (number[i] >= count)
            count = number[i] + 1;
    return count;
}

/* Pairs of a list of (name, text) tuples; the strings belong to the list. */
static bool pair_texts(PyObject *pairs, Py_ssize_t i, const char **name, const char **text)
{
    return PyArg_ParseTuple(PyList_GET_ITEM(pairs, i), "ss", name, text);
}

/* What can be told after the end too. */
static bool keep_facts(Allocator *self)
{
    struct us_memory_account memory;
    us_memory_account(self->core->memory, &memory);
    self->budget = memory.budget;
    self->debug_f = self->core->debug_f;
    self->policy = PyUnicode_FromString(self->core->policy->name);
    self->topology = us_py_topology(self->core->machine);
    return self->policy && self->topology;
}

static bool create_core(Allocator *self, struct us_allocator_options *options, PyObject *defaults)
{
    struct us_error error;
    struct us_py_call unlocked;
    us_py_release(&unlocked);
    struct us_allocator *core = us_allocator_create(options, &error);
    us_py_acquire(&unlocked);
    if (!core) {
        us_py_raise(self->state, &error, NULL);
        return false;
    }
    self->core = core;
    atomic_store(&self->life.ended, 0);
    list_add(self);
    if (!keep_facts(self))
        return false;
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(defaults); i++) {
        const char *name, *text;
        if (!pair_texts(defaults, i, &name, &text))
            return false;
        if (us_allocator_set_default(core, name, text, &error) != US_OK) {
            us_py_raise(self->state, &error, NULL);
            return false;
        }
    }
    return true;
}

static PyObject *allocator_create(PyObject *type_object, PyObject *args)
{
    PyTypeObject *type = (PyTypeObject *)type_object;
    struct us_allocator_options options;
    struct us_topology topology = {0};
    PyObject *machine, *cpu_node, *cpu_domain, *defaults;
    unsigned long long memory, range, delay, seed;
    unsigned ndomain;
    int debug;
    us_allocator_options_init(&options);
    if (!PyArg_ParseTuple(args, "sOOOKKKIpKO!:_create", &options.policy, &machine, &cpu_node,
                          &cpu_domain, &memory, &range, &delay, &options.page_size, &debug, &seed,
                          &PyList_Type, &defaults))
        return NULL;
    if ((cpu_node != Py_None && !PyTuple_Check(cpu_node)) ||
        (cpu_domain != Py_None && !PyTuple_Check(cpu_domain))) {
        PyErr_SetString(PyExc_TypeError, "a topology is two tuples of numbers");
        return NULL;
    }
    options.memory = memory;
    options.address_range = range;
    options.purge_delay_ns = delay;
    options.debug_f = debug;
    options.seed = seed;
    Allocator *self = (Allocator *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    atomic_store(&self->life.ended, 1);
    self->machine = Py_NewRef(machine);
    self->state = us_py_state_of(type);
    unsigned *nodes = numbers(cpu_node, &topology.ncpus);
    unsigned *domains = numbers(cpu_domain, &ndomain);
    if (self->state && !PyErr_Occurred()) {
        topology.cpu_node = nodes;
        topology.cpu_domain = domains;
        topology.nnodes = count_of(nodes, topology.ncpus);
        topology.ndomains = count_of(domains, ndomain);
        if (topology.ncpus)
            options.topology = &topology;
        create_core(self, &options, defaults);
    }
    PyMem_Free(nodes);
    PyMem_Free(domains);
    if (PyErr_Occurred())
        Py_CLEAR(self);
    return (PyObject *)self;
}

/* ---- closing ------------------------------------------------------------------------------------- */

/* Runs over the handles that live: begins or settles their end, counts exported buffers. */
static void settle_handles(Allocator *self, bool ended)
{
    for (struct us_py_record *record = self->records; record; record = record->next) {
        struct us_py_cache *handle = live_handle(record);
        if (!handle)
            continue;
        if (ended) {
            handle->dropped = record->dropped;
            handle->record = NULL;
            handle->core = NULL;
        } else {
            set_hot(handle);
        }
        us_py_end_settle(&handle->life, ended);
        Py_DECREF(handle);
    }
}

static int64_t begin_handles(Allocator *self)
{
    int64_t exports = 0;
    for (struct us_py_record *record = self->records; record; record = record->next) {
        struct us_py_cache *handle = live_handle(record);
        if (!handle)
            continue;
        us_py_end_begin(&handle->life, "close its allocator"); /* cannot fail: checked before */
        handle->hot = NULL;
        exports += atomic_load(&handle->exports);
        Py_DECREF(handle);
    }
    return exports;
}

static void free_records(Allocator *self)
{
    while (self->records)
        us_py_record_drop(self, self->records);
}

static bool destroy_core(Allocator *self, bool force, struct us_error *error)
{
    struct us_py_call unlocked;
    us_py_release(&unlocked);
    enum us_status status = us_allocator_destroy(self->core, force, error);
    us_py_acquire(&unlocked);
    if (status == US_OK)
        self->core = NULL;
    return status == US_OK;
}

/* `abandon`: views of objects may be out; the memory then stays until the last of them is gone. */
static bool close_now(Allocator *self, bool force, bool abandon)
{
    struct us_error error;
    int64_t exports = begin_handles(self);
    bool closed = false;
    if (exports > 0 && abandon) {
        closed = true; /* deallocation destroys the core */
    } else if (exports > 0) {
        PyErr_Format(PyExc_BufferError,
                     "cannot close the allocator while %lld exported view(s) of its objects exist; "
                     "release them first",
                     (long long)exports);
    } else {
        list_remove(self);
        closed = destroy_core(self, force, &error);
        if (!closed) {
            list_add(self);
            us_py_raise(self->state, &error, self->state->live_error);
        }
    }
    settle_handles(self, closed);
    return closed;
}

static PyObject *allocator_close(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"force", "_abandon", NULL};
    Allocator *self = (Allocator *)op;
    int force = 0, abandon = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|pp:close", names, &force, &abandon))
        return NULL;
    if (us_py_end_begin(&self->life, "close its allocator")) {
        bool closed = close_now(self, force, abandon);
        us_py_end_settle(&self->life, closed);
        if (closed && !self->core)
            free_records(self);
    }
    if (PyErr_Occurred())
        return NULL;
    Py_RETURN_NONE;
}

static void allocator_dealloc(PyObject *op)
{
    Allocator *self = (Allocator *)op;
    PyTypeObject *type = Py_TYPE(op);
    PyObject_GC_UnTrack(op);
    if (self->weakrefs)
        PyObject_ClearWeakRefs(op);
    if (self->core) {
        list_remove(self);
        destroy_core(self, true, NULL);
    }
    free_records(self);
    Py_XDECREF(self->machine);
    Py_XDECREF(self->policy);
    Py_XDECREF(self->topology);
    type->tp_free(op);
    Py_DECREF(type);
}

static int allocator_traverse(PyObject *op, visitproc visit, void *arg)
{
    Allocator *self = (Allocator *)op;
    Py_VISIT(Py_TYPE(op));
    Py_VISIT(self->machine);
    for (struct us_py_record *record = self->records; record; record = record->next)
        Py_VISIT(record->constructor);
    return 0;
}

static int allocator_clear(PyObject *op)
{
    Allocator *self = (Allocator *)op;
    for (struct us_py_record *record = self->records; record; record = record->next)
        Py_CLEAR(record->constructor);
    return 0;
}

/* ---- caches -------------------------------------------------------------------------------------- */

static bool fill_pairs(PyObject *pairs, const char **names, const char **values)
{
    for (Py_ssize_t i = 0; i < PyList_GET_SIZE(pairs); i++)
        if (!pair_texts(pairs, i, &names[i], &values[i]))
            return false;
    return true;
}

/* Makes the cache; NULL with an exception. */
static struct us_cache *create_cache(Allocator *self, struct us_py_call *call,
                                     struct us_cache_options *options, PyObject *callable,
                                     const char **names, const char **values, size_t n, unsigned *id)
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
        us_cache_create_with(self->core, options, names, values, n, &error);
    if (cache)
        *id = cache->id;
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

static PyObject *allocator_create_cache(PyObject *op, PyObject *args)
{
    Allocator *self = (Allocator *)op;
    struct us_cache_options options = {0};
    struct us_py_call call;
    PyObject *callable, *pairs;
    Py_ssize_t size, align, pattern_bytes;
    const char *pattern;
    if (!PyArg_ParseTuple(args, "snnIy#OO!:_create_cache", &options.name, &size, &align,
                          &options.flags, &pattern, &pattern_bytes, &callable, &PyList_Type, &pairs))
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
        all[(*n)++] = (struct listed){c, c->id};
    us_flight_leave(&flight);
    return all;
}

/* Handles of all caches, oldest first. */
static PyObject *allocator_caches(PyObject *op, PyObject *unused)
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

/* ---- general allocations --------------------------------------------------------------------------- */

static PyObject *allocator_kmalloc(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                   PyObject *kwnames)
{
    Allocator *self = (Allocator *)op;
    struct us_py_call call;
    unsigned flags;
    int node;
    if (nargs != 1) {
        PyErr_Format(PyExc_TypeError, "kmalloc() takes a size in bytes (%zd given)", nargs);
        return NULL;
    }
    Py_ssize_t size = PyNumber_AsSsize_t(args[0], PyExc_OverflowError);
    if (size == -1 && PyErr_Occurred())
        return NULL;
    if (size <= 0) {
        PyErr_Format(PyExc_ValueError, "cannot kmalloc %zd bytes: expected 1 or more", size);
        return NULL;
    }
    struct us_allocator *core = us_py_enter_allocator(&call, self);
    if (!core)
        return NULL;
    PyObject *address = NULL;
    if (us_py_placement("kmalloc", args + nargs, kwnames, core->machine, &flags, &node)) {
        void *object = us_kmalloc(core, (size_t)size, flags, node);
        if (object) {
            address = PyLong_FromVoidPtr(object);
            if (!address)
                us_kfree(core, object);
        } else {
            struct us_cache *cache = us_kmalloc_cache(core, (size_t)size);
            us_py_raise_failure(self->state, cache ? cache : core->large, (size_t)size);
        }
    }
    us_py_leave(&call);
    return address;
}

static PyObject *allocator_kfree(PyObject *op, PyObject *value)
{
    Allocator *self = (Allocator *)op;
    struct us_py_call call;
    struct us_error error;
    uint64_t address;
    if (!us_py_address(value, &address))
        return NULL;
    struct us_allocator *core = us_py_enter_allocator(&call, self);
    if (!core)
        return NULL;
    PyObject *result = Py_None;
    if (us_kfree_checked(core, (void *)(uintptr_t)address, &error) != US_OK)
        result = us_py_raise_misuse(self->state, &error);
    us_py_leave(&call);
    return Py_XNewRef(result);
}

static PyObject *allocator_ksize(PyObject *op, PyObject *value)
{
    Allocator *self = (Allocator *)op;
    struct us_py_call call;
    uint64_t address;
    if (!us_py_address(value, &address))
        return NULL;
    struct us_allocator *core = us_py_enter_allocator(&call, self);
    if (!core)
        return NULL;
    size_t size = us_ksize(core, (void *)(uintptr_t)address);
    if (size == 0) {
        struct us_error error = {.status = US_ECORRUPT};
        PyOS_snprintf(error.text, sizeof error.text,
                      "ksize of object 0x%llx: found no allocation there, expected an address that "
                      "kmalloc returned",
                      (unsigned long long)address);
        us_py_raise_misuse(self->state, &error);
    }
    us_py_leave(&call);
    return size ? PyLong_FromSize_t(size) : NULL;
}

/* ---- work on all caches ------------------------------------------------------------------------------ */

/* Calls work(core, number) without the GIL. */
static PyObject *run(PyObject *op, uint64_t (*work)(struct us_allocator *, int64_t), int64_t number)
{
    struct us_py_call call;
    struct us_allocator *core = us_py_enter_allocator(&call, (Allocator *)op);
    if (!core)
        return NULL;
    us_py_release(&call);
    uint64_t result = work(core, number);
    us_py_acquire(&call);
    us_py_leave(&call);
    return PyLong_FromUnsignedLongLong(result);
}

static uint64_t work_shrink(struct us_allocator *core, int64_t unused)
{
    (void)unused;
    return us_allocator_shrink(core);
}

static uint64_t work_expire(struct us_allocator *core, int64_t node)
{
    return us_allocator_expire(core, (int)node);
}

static uint64_t work_flush(struct us_allocator *core, int64_t unused)
{
    (void)unused;
    us_allocator_flush(core);
    return 0;
}

static uint64_t work_purge(struct us_allocator *core, int64_t unused)
{
    struct us_flight flight;
    (void)unused;
    us_flight_enter(core->machine, &flight);
    uint64_t bytes = us_memory_purge(core->memory, &flight, us_now(core->machine), true);
    us_flight_leave(&flight);
    return bytes;
}

static uint64_t work_advance(struct us_allocator *core, int64_t delta)
{
    us_allocator_advance(core, (uint64_t)delta);
    return us_now(core->machine);
}

static PyObject *allocator_shrink(PyObject *self, PyObject *unused)
{
    (void)unused;
    return run(self, work_shrink, 0);
}

static PyObject *allocator_purge(PyObject *self, PyObject *unused)
{
    (void)unused;
    return run(self, work_purge, 0);
}

static PyObject *allocator_flush(PyObject *self, PyObject *unused)
{
    (void)unused;
    PyObject *result = run(self, work_flush, 0);
    if (!result)
        return NULL;
    Py_DECREF(result);
    Py_RETURN_NONE;
}

static PyObject *allocator_expire(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"node", NULL};
    PyObject *value = Py_None;
    struct us_py_call call;
    int node;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|O:expire", names, &value))
        return NULL;
    struct us_allocator *core = us_py_enter_allocator(&call, (Allocator *)op);
    if (!core)
        return NULL;
    bool ok = us_py_node(value, core->machine, &node);
    us_py_leave(&call);
    return ok ? run(op, work_expire, node) : NULL;
}

static PyObject *allocator_advance(PyObject *self, PyObject *value)
{
    long long delta = PyLong_AsLongLong(value);
    if (delta == -1 && PyErr_Occurred())
        return NULL;
    return run(self, work_advance, delta);
}

static PyObject *allocator_reaper(PyObject *op, PyObject *value)
{
    struct us_py_call call;
    struct us_error error;
    unsigned long long period = PyLong_AsUnsignedLongLong(value);
    if (period == UINT64_MAX && PyErr_Occurred())
        return NULL;
    struct us_allocator *core = us_py_enter_allocator(&call, (Allocator *)op);
    if (!core)
        return NULL;
    us_py_release(&call);
    enum us_status status = us_allocator_reaper(core, period, &error);
    us_py_acquire(&call);
    if (status != US_OK)
        us_py_raise(((Allocator *)op)->state, &error, NULL);
    us_py_leave(&call);
    return status == US_OK ? Py_NewRef(Py_None) : NULL;
}

static PyObject *allocator_on_cpu(PyObject *op, PyObject *value)
{
    struct us_py_call call;
    struct us_error error;
    long cpu = PyLong_AsLong(value);
    if (cpu == -1 && PyErr_Occurred())
        return NULL;
    struct us_allocator *core = us_py_enter_allocator(&call, (Allocator *)op);
    if (!core)
        return NULL;
    PyObject *result = NULL;
    if (cpu < -1 || cpu >= (long)core->machine->ncpus) {
        PyErr_Format(PyExc_ValueError, "CPU %ld is not on this machine: expected 0 to %u", cpu,
                     core->machine->ncpus - 1);
    } else {
        int previous = us_machine_on_cpu(core->machine, (int)cpu, &error);
        result = previous < 0 ? us_py_raise(((Allocator *)op)->state, &error, NULL)
                              : PyLong_FromLong(previous);
    }
    us_py_leave(&call);
    return result;
}

/* Sets the calling thread's memory policy (nodes, interleave or preferred); returns the old one. */
static PyObject *allocator_memory_policy(PyObject *op, PyObject *args)
{
    struct us_py_call call;
    struct us_task_policy policy, old;
    struct us_error error = {.status = US_OK};
    PyObject *tuple;
    unsigned n;
    int interleave;
    if (!PyArg_ParseTuple(args, "O!p:_memory_policy", &PyTuple_Type, &tuple, &interleave))
        return NULL;
    unsigned *nodes = numbers(tuple, &n);
    if (!nodes)
        return NULL;
    struct us_allocator *core = us_py_enter_allocator(&call, (Allocator *)op);
    if (!core) {
        PyMem_Free(nodes);
        return NULL;
    }
    PyObject *result = NULL;
    bool ok = interleave ? us_task_policy_interleave(&policy, core->machine, nodes, n, &error)
                         : us_task_policy_preferred(&policy, core->machine, nodes[0], &error);
    if (ok) {
        us_task_policy_set(&policy, &old);
        result = PyBytes_FromStringAndSize((const char *)&old, sizeof old);
    } else {
        us_py_raise(((Allocator *)op)->state, &error, NULL);
    }
    us_py_leave(&call);
    PyMem_Free(nodes);
    return result;
}

/* Restores what _memory_policy returned. */
static PyObject *allocator_memory_policy_restore(PyObject *op, PyObject *bytes)
{
    struct us_task_policy old;
    (void)op;
    if (!PyBytes_Check(bytes) || PyBytes_GET_SIZE(bytes) != sizeof old) {
        PyErr_SetString(PyExc_TypeError, "expected what _memory_policy() returned");
        return NULL;
    }
    memcpy(&old, PyBytes_AS_STRING(bytes), sizeof old);
    us_task_policy_set(&old, NULL);
    Py_RETURN_NONE;
}

static PyObject *allocator_fail(PyObject *op, PyObject *args)
{
    struct us_py_call call;
    int kind;
    double rate;
    unsigned long long nth;
    if (!PyArg_ParseTuple(args, "idK:_fail", &kind, &rate, &nth))
        return NULL;
    struct us_allocator *core = us_py_enter_allocator(&call, (Allocator *)op);
    if (!core)
        return NULL;
    const double scaled = rate * 4294967296.0;
    us_memory_fail(core->memory, (enum us_fail_kind)kind,
                   scaled >= 4294967295.0 ? UINT32_MAX : (uint32_t)scaled, nth);
    us_py_leave(&call);
    Py_RETURN_NONE;
}

/* ---- attributes ---------------------------------------------------------------------------------------- */

static PyObject *get_reserved(PyObject *op, void *unused)
{
    struct us_py_call call;
    struct us_memory_account memory;
    (void)unused;
    struct us_allocator *core = us_py_enter_allocator(&call, (Allocator *)op);
    if (!core)
        return NULL;
    us_memory_account(core->memory, &memory);
    us_py_leave(&call);
    return PyLong_FromUnsignedLongLong(memory.reserved);
}

static PyObject *get_cpu(PyObject *op, void *unused)
{
    struct us_py_call call;
    (void)unused;
    struct us_allocator *core = us_py_enter_allocator(&call, (Allocator *)op);
    if (!core)
        return NULL;
    unsigned cpu = us_cpu_now(core->machine);
    us_py_leave(&call);
    return PyLong_FromUnsignedLong(cpu);
}

static PyObject *get_closed(PyObject *op, void *unused)
{
    (void)unused;
    return PyBool_FromLong(atomic_load(&((Allocator *)op)->life.ended));
}

PyObject *us_py_topology(const struct us_machine *m)
{
    PyObject *nodes = PyTuple_New(m->ncpus), *domains = PyTuple_New(m->ncpus);
    for (unsigned i = 0; nodes && domains && i < m->ncpus; i++) {
        PyTuple_SET_ITEM(nodes, i, PyLong_FromUnsignedLong(m->cpu[i].node));
        PyTuple_SET_ITEM(domains, i, PyLong_FromUnsignedLong(m->cpu[i].domain));
    }
    if (!nodes || !domains || PyErr_Occurred()) {
        Py_XDECREF(nodes);
        Py_XDECREF(domains);
        return NULL;
    }
    return Py_BuildValue("NN", nodes, domains);
}

static PyMethodDef allocator_methods[] = {
    {"_create", allocator_create, METH_VARARGS | METH_CLASS,
     "_create($type, /, *args)\n--\n\nAn allocator from checked arguments."},
    {"_create_cache", allocator_create_cache, METH_VARARGS,
     "_create_cache($self, /, *args)\n--\n\nA cache from checked arguments."},
    {"_caches", allocator_caches, METH_NOARGS, "_caches($self, /)\n--\n\nAll caches."},
    {"close", (PyCFunction)(void (*)(void))allocator_close, METH_VARARGS | METH_KEYWORDS,
     "close($self, /, force=False, _abandon=False)\n--\n\n"},
    {"kmalloc", (PyCFunction)(void (*)(void))allocator_kmalloc, METH_FASTCALL | METH_KEYWORDS,
     "kmalloc($self, size, /, *, node=None, zero=False, thisnode=False)\n--\n\n"},
    {"kfree", allocator_kfree, METH_O, "kfree($self, address, /)\n--\n\n"},
    {"ksize", allocator_ksize, METH_O, "ksize($self, address, /)\n--\n\n"},
    {"shrink", allocator_shrink, METH_NOARGS, "shrink($self, /)\n--\n\n"},
    {"purge", allocator_purge, METH_NOARGS, "purge($self, /)\n--\n\n"},
    {"flush", allocator_flush, METH_NOARGS, "flush($self, /)\n--\n\n"},
    {"expire", (PyCFunction)(void (*)(void))allocator_expire, METH_VARARGS | METH_KEYWORDS,
     "expire($self, /, node=None)\n--\n\n"},
    {"_advance", allocator_advance, METH_O,
     "_advance($self, nanoseconds, /)\n--\n\nMoves the policy's clock; returns its time."},
    {"_reaper", allocator_reaper, METH_O,
     "_reaper($self, nanoseconds, /)\n--\n\nStarts or (0) stops the reaper thread."},
    {"_on_cpu", allocator_on_cpu, METH_O,
     "_on_cpu($self, cpu, /)\n--\n\nMoves to a CPU; returns the previous one."},
    {"_memory_policy", allocator_memory_policy, METH_VARARGS,
     "_memory_policy($self, nodes, interleave, /)\n--\n\nSets the thread's policy; returns the old."},
    {"_memory_policy_restore", allocator_memory_policy_restore, METH_O,
     "_memory_policy_restore($self, old, /)\n--\n\nRestores a policy of the thread."},
    {"_fail", allocator_fail, METH_VARARGS,
     "_fail($self, kind, rate, nth, /)\n--\n\nInjects failures."},
    {"_account", us_py_allocator_account, METH_NOARGS, "_account($self, /)\n--\n\nByte accounts."},
    {"_locks", us_py_allocator_locks, METH_NOARGS,
     "_locks($self, /)\n--\n\nName, uses and contentions of each lock class."},
    {"_node_memory", us_py_allocator_node_memory, METH_O,
     "_node_memory($self, node, /)\n--\n\nThe page provider of a node."},
    {NULL, NULL, 0, NULL},
};

static PyMemberDef allocator_members[] = {
    {"machine", T_OBJECT, offsetof(Allocator, machine), READONLY,
     "The machine asked for, None for this one."},
    {"policy", T_OBJECT, offsetof(Allocator, policy), READONLY, "Name of the policy."},
    {"memory_budget", T_ULONGLONG, offsetof(Allocator, budget), READONLY,
     "Bytes all nodes may use together."},
    {"_debug_f", T_BOOL, offsetof(Allocator, debug_f), READONLY, "True when every cache is checked."},
    {"_topology", T_OBJECT, offsetof(Allocator, topology), READONLY, "Node and domain of each CPU."},
    {"__weaklistoffset__", T_PYSSIZET, offsetof(Allocator, weakrefs), READONLY, NULL},
    {NULL, 0, 0, 0, NULL},
};

static PyGetSetDef allocator_getset[] = {
    {"cpu", get_cpu, NULL, "The current CPU.", NULL},
    {"closed", get_closed, NULL, "True once closed.", NULL},
    {"_reserved", get_reserved, NULL, "Bytes of pages handed out.", NULL},
    {NULL, NULL, NULL, NULL, NULL},
};

static PyType_Slot allocator_slots[] = {
    {Py_tp_dealloc, allocator_dealloc},
    {Py_tp_traverse, allocator_traverse},
    {Py_tp_clear, allocator_clear},
    {Py_tp_methods, allocator_methods},
    {Py_tp_members, allocator_members},
    {Py_tp_getset, allocator_getset},
    {0, NULL},
};

PyType_Spec us_py_allocator_spec = {
    .name = US_PY_MODULE ".Allocator",
    .basicsize = sizeof(Allocator),
    .flags = Py_TPFLAGS_DEFAULT | Py_TPFLAGS_HAVE_GC | Py_TPFLAGS_BASETYPE,
    .slots = allocator_slots,
};
