/* py_allocator.c - an allocator: how it is made and closed, and its attributes. */
#include "python/py_unislab.h"
#ifdef US_MODEL
#include "machine/model/costs.h"
#endif

#include <structmember.h>

typedef struct us_py_allocator Allocator;

/* ---- the module's list of open allocators ---------------------------------------------------- */

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

/* ---- making ---------------------------------------------------------------------------------- */

static unsigned count_of(const unsigned *number, unsigned n)
{
    unsigned count = 0;
    for (unsigned i = 0; i < n; i++)
        if (number[i] >= count)
            count = number[i] + 1;
    return count;
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

/* All at once: some make sense only together. */
static bool set_defaults(Allocator *self, PyObject *pairs)
{
    Py_ssize_t n = PyList_GET_SIZE(pairs);
    const char **texts = n ? PyMem_New(const char *, 2 * (size_t)n) : NULL;
    struct us_error error;
    bool done = true;
    if (n && !texts) {
        PyErr_NoMemory();
        return false;
    }
    for (Py_ssize_t i = 0; i < n && done; i++)
        done = us_py_pair_texts(pairs, i, &texts[i], &texts[n + i]);
    if (done && n &&
        us_allocator_set_defaults(self->core, texts, texts + n, (size_t)n, &error) != US_OK) {
        us_py_raise(self->state, &error, NULL);
        done = false;
    }
    PyMem_Free(texts);
    return done;
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
    return set_defaults(self, defaults);
}

#ifdef US_MODEL
/* One number of a dict, by its row's name. */
static bool model_number(PyObject *dict, const char *what, const char *name, uint64_t *out)
{
    PyObject *number = PyDict_GetItemString(dict, name);

    if (!number) {
        PyErr_Format(PyExc_KeyError, "%s of a machine: no %s", what, name);
        return false;
    }
    *out = PyLong_AsUnsignedLongLong(number);
    return !PyErr_Occurred();
}

/* (costs, caches, smt) as unislab.Machine gives them, or None. */
static bool parse_model(PyObject *model, struct us_costs *costs, struct us_cache_sizes *caches,
                        struct us_allocator_options *options)
{
    PyObject *cost, *cache;

    if (model == Py_None)
        return true;
    if (!PyArg_ParseTuple(model, "O!O!I;model: (costs, caches, smt)", &PyDict_Type, &cost,
                          &PyDict_Type, &cache, &options->model_smt))
        return false;
#define US_ROW(name, help) &&model_number(cost, "costs", #name, &costs->name)
    if (!(true US_COSTS(US_ROW)))
        return false;
#undef US_ROW
#define US_ROW(name, help) &&model_number(cache, "caches", #name, &caches->name)
    if (!(true US_CACHE_SIZES(US_ROW)))
        return false;
#undef US_ROW
    options->model_costs = (const uint64_t *)costs;
    options->model_caches = (const uint64_t *)caches;
    return true;
}
#endif

static PyObject *allocator_create(PyObject *type_object, PyObject *args)
{
    PyTypeObject *type = (PyTypeObject *)type_object;
    struct us_allocator_options options;
    struct us_topology topology = {0};
    PyObject *machine, *cpu_node, *cpu_domain, *defaults, *model = Py_None;
    unsigned long long memory, range, delay, rcu, seed;
    unsigned ndomain;
    int debug, merge;
#ifdef US_MODEL
    struct us_cache_sizes caches;
    struct us_costs costs;
#endif
    us_allocator_options_init(&options);
    if (!PyArg_ParseTuple(args, "sOOOKKKKIpKpO!|O:_create", &options.policy, &machine, &cpu_node,
                          &cpu_domain, &memory, &range, &delay, &rcu, &options.page_size, &debug,
                          &seed, &merge, &PyList_Type, &defaults, &model))
        return NULL;
#ifdef US_MODEL
    if (!parse_model(model, &costs, &caches, &options))
        return NULL;
#endif
    if ((cpu_node != Py_None && !PyTuple_Check(cpu_node)) ||
        (cpu_domain != Py_None && !PyTuple_Check(cpu_domain))) {
        PyErr_SetString(PyExc_TypeError, "a topology is two tuples of numbers");
        return NULL;
    }
    options.memory = memory;
    options.address_range = range;
    options.purge_delay_ns = delay;
    options.rcu_delay_ns = rcu;
    options.debug_f = debug;
    options.merge = merge;
    options.seed = seed;
    Allocator *self = (Allocator *)type->tp_alloc(type, 0);
    if (!self)
        return NULL;
    atomic_store(&self->life.ended, 1);
    self->machine = Py_NewRef(machine);
    self->module = Py_XNewRef(PyType_GetModuleByDef(type, &us_py_module));
    self->state = self->module ? PyModule_GetState(self->module) : NULL;
    unsigned *nodes = us_py_numbers(cpu_node, &topology.ncpus);
    unsigned *domains = us_py_numbers(cpu_domain, &ndomain);
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

/* ---- closing
 * ------------------------------------------------------------------------------------- */

static int64_t begin_handles(Allocator *self)
{
    int64_t exports = 0;
    for (struct us_py_record *record = self->records; record; record = record->next) {
        struct us_py_cache *handle = us_py_live_handle(record);
        if (!handle)
            continue;
        us_py_end_begin_within(&handle->life);
        handle->hot = NULL;
        exports += atomic_load(&handle->exports);
        Py_DECREF(handle);
    }
    return exports;
}

static void settle_handles(Allocator *self, bool ended)
{
    for (struct us_py_record *record = self->records; record; record = record->next) {
        struct us_py_cache *handle = us_py_live_handle(record);
        if (!handle)
            continue;
        if (ended) {
            handle->dropped = record->dropped;
            handle->record = NULL;
            handle->core = NULL;
        } else {
            us_py_set_hot(handle);
        }
        us_py_end_settle(&handle->life, ended);
        Py_DECREF(handle);
    }
}

static void free_records(Allocator *self)
{
    while (self->records)
        us_py_record_drop(self, self->records);
}

static enum us_status destroy_core(Allocator *self, bool force, struct us_error *error)
{
    struct us_py_call unlocked;
    us_py_release(&unlocked);
    enum us_status status = us_allocator_destroy(self->core, force, error);
    us_py_acquire(&unlocked);
    if (status == US_OK)
        self->core = NULL;
    return status;
}

/* Destroys the core, unless views of objects are out, whose number it returns. `abandon`: the
 * memory then stays until the last of them is gone, and deallocation destroys the core. */
static int64_t close_now(Allocator *self, bool force, bool abandon, struct us_error *error)
{
    const int64_t exports = begin_handles(self);
    error->status = US_OK;
    if (exports == 0) {
        list_remove(self);
        error->status = destroy_core(self, force, error);
        if (error->status != US_OK)
            list_add(self);
    }
    settle_handles(self, error->status == US_OK && (exports == 0 || abandon));
    return exports;
}

static PyObject *allocator_close(PyObject *op, PyObject *args, PyObject *kwargs)
{
    static char *names[] = {"force", "_abandon", NULL};
    Allocator *self = (Allocator *)op;
    struct us_error error;
    int force = 0, abandon = 0;
    if (!PyArg_ParseTupleAndKeywords(args, kwargs, "|pp:close", names, &force, &abandon))
        return NULL;
    if (!us_py_end_begin(&self->life, self, "close the allocator"))
        return PyErr_Occurred() ? NULL : Py_NewRef(Py_None);
    const int64_t exports = close_now(self, force, abandon, &error);
    us_py_end_settle(&self->life, error.status == US_OK && (exports == 0 || abandon));
    if (error.status != US_OK)
        return us_py_raise(self->state, &error, self->state->live_error);
    if (exports > 0 && !abandon)
        return PyErr_Format(PyExc_BufferError,
                            "cannot close the allocator while %lld exported view(s) of its objects "
                            "exist; release them first",
                            (long long)exports);
    if (!self->core)
        free_records(self);
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
    Py_XDECREF(self->module);
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
    Py_VISIT(self->module);
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

/* ---- attributes
 * ---------------------------------------------------------------------------------------- */

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
    {"_create_cache", us_py_allocator_create_cache, METH_VARARGS,
     "_create_cache($self, /, *args)\n--\n\nA cache from checked arguments."},
    {"_caches", us_py_allocator_caches, METH_NOARGS, "_caches($self, /)\n--\n\nAll caches."},
    {"_named", us_py_allocator_named, METH_O,
     "_named($self, name, /)\n--\n\nThe cache of a name, or None."},
    {"close", (PyCFunction)(void (*)(void))allocator_close, METH_VARARGS | METH_KEYWORDS,
     "close($self, /, force=False, _abandon=False)\n--\n\n"},
    {"kmalloc", (PyCFunction)(void (*)(void))us_py_allocator_kmalloc, METH_FASTCALL | METH_KEYWORDS,
     "kmalloc($self, size, /, *, node=None, zero=False, thisnode=False)\n--\n\n"},
    {"krealloc", (PyCFunction)(void (*)(void))us_py_allocator_krealloc,
     METH_FASTCALL | METH_KEYWORDS,
     "krealloc($self, address, size, /, *, node=None, zero=False, thisnode=False)\n--\n\n"},
    {"kfree", us_py_allocator_kfree, METH_O, "kfree($self, address, /)\n--\n\n"},
    {"kfree_rcu", us_py_allocator_kfree_rcu, METH_O, "kfree_rcu($self, address, /)\n--\n\n"},
    {"rcu_barrier", us_py_allocator_rcu_barrier, METH_NOARGS, "rcu_barrier($self, /)\n--\n\n"},
    {"ksize", us_py_allocator_ksize, METH_O, "ksize($self, address, /)\n--\n\n"},
    {"shrink", us_py_allocator_shrink, METH_NOARGS, "shrink($self, /)\n--\n\n"},
    {"purge", us_py_allocator_purge, METH_NOARGS, "purge($self, /)\n--\n\n"},
    {"flush", us_py_allocator_flush, METH_NOARGS, "flush($self, /)\n--\n\n"},
    {"expire", (PyCFunction)(void (*)(void))us_py_allocator_expire, METH_VARARGS | METH_KEYWORDS,
     "expire($self, /, node=None)\n--\n\n"},
    {"_advance", us_py_allocator_advance, METH_O,
     "_advance($self, nanoseconds, /)\n--\n\nMoves the policy's clock; returns its time."},
    {"_reaper_start", us_py_allocator_reaper_start, METH_O,
     "_reaper_start($self, nanoseconds, /)\n--\n\nStarts a reaper; returns its number."},
    {"_reaper_stop", us_py_allocator_reaper_stop, METH_O,
     "_reaper_stop($self, number, /)\n--\n\nStops the reaper of that number."},
    {"_reaper_number", us_py_allocator_reaper_number, METH_NOARGS,
     "_reaper_number($self, /)\n--\n\nNumber of the reaper at work, or 0."},
    {"_on_cpu", us_py_allocator_on_cpu, METH_O,
     "_on_cpu($self, cpu, /)\n--\n\nMoves to a CPU; returns the previous one."},
    {"_offline_cpu", us_py_allocator_offline_cpu, METH_O,
     "_offline_cpu($self, cpu, /)\n--\n\nTakes a CPU out of use."},
    {"_online_cpu", us_py_allocator_online_cpu, METH_O,
     "_online_cpu($self, cpu, /)\n--\n\nTakes a CPU into use again."},
    {"_online", us_py_allocator_online, METH_NOARGS,
     "_online($self, /)\n--\n\nWhether each CPU is in use."},
    {"_memory_policy", us_py_allocator_memory_policy, METH_VARARGS,
     "_memory_policy($self, nodes, interleave, /)\n--\n\nSets the thread's policy; returns the "
     "old."},
    {"_memory_policy_restore", us_py_allocator_memory_policy_restore, METH_O,
     "_memory_policy_restore($self, old, /)\n--\n\nRestores a policy of the thread."},
    {"_fail", us_py_allocator_fail, METH_VARARGS,
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
    {"_debug_f", T_BOOL, offsetof(Allocator, debug_f), READONLY,
     "True when every cache is checked."},
    {"_topology", T_OBJECT, offsetof(Allocator, topology), READONLY,
     "Node and domain of each CPU."},
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
