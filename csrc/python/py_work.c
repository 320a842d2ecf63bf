/* py_work.c - what an allocator does beside its caches: general allocations, and work on all
 * caches. */
#include "python/py_unislab.h"
#include "slab/mempolicy.h"

#include <string.h>

typedef struct us_py_allocator Allocator;

/* ---- general allocations
 * --------------------------------------------------------------------------- */

PyObject *us_py_allocator_kmalloc(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
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
    Py_ssize_t size;
    if (!us_py_count(args[0], "size for kmalloc()", 1, PY_SSIZE_T_MAX, &size))
        return NULL;
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
            us_py_raise_failure(self->state, cache ? cache : core->large, 1, (size_t)size);
        }
    }
    us_py_leave(&call);
    return address;
}

PyObject *us_py_allocator_krealloc(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                   PyObject *kwnames)
{
    Allocator *self = (Allocator *)op;
    struct us_py_call call;
    struct us_error error;
    uint64_t address;
    unsigned flags;
    void *object;
    int node;
    if (nargs != 2) {
        PyErr_Format(PyExc_TypeError, "krealloc() takes an address and a size (%zd given)", nargs);
        return NULL;
    }
    Py_ssize_t size;
    if (!us_py_address(args[0], &address) ||
        !us_py_count(args[1], "size for krealloc()", 0, PY_SSIZE_T_MAX, &size))
        return NULL;
    struct us_allocator *core = us_py_enter_allocator(&call, self);
    if (!core)
        return NULL;
    PyObject *result = NULL;
    if (us_py_placement("krealloc", args + nargs, kwnames, core->machine, &flags, &node)) {
        if (us_krealloc_checked(core, (void *)(uintptr_t)address, (size_t)size, flags, node,
                                &object, &error) != US_OK)
            us_py_raise(self->state, &error, NULL);
        else
            result = PyLong_FromVoidPtr(object); /* without memory for it the object is lost */
    }
    us_py_leave(&call);
    return result;
}

typedef enum us_status free_fn(struct us_allocator *, void *, struct us_error *);

static PyObject *free_address(Allocator *self, PyObject *value, free_fn *give)
{
    struct us_py_call call;
    struct us_error error;
    uint64_t address;
    if (!us_py_address(value, &address))
        return NULL;
    struct us_allocator *core = us_py_enter_allocator(&call, self);
    if (!core)
        return NULL;
    PyObject *result = Py_None;
    if (give(core, (void *)(uintptr_t)address, &error) != US_OK)
        result = us_py_raise(self->state, &error, NULL);
    us_py_leave(&call);
    return Py_XNewRef(result);
}

PyObject *us_py_allocator_kfree(PyObject *op, PyObject *value)
{
    return free_address((Allocator *)op, value, us_kfree_checked);
}

PyObject *us_py_allocator_kfree_rcu(PyObject *op, PyObject *value)
{
    return free_address((Allocator *)op, value, us_kfree_rcu);
}

PyObject *us_py_allocator_ksize(PyObject *op, PyObject *value)
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

/* ---- work on all caches
 * ------------------------------------------------------------------------------ */

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

PyObject *us_py_allocator_shrink(PyObject *self, PyObject *unused)
{
    (void)unused;
    return run(self, work_shrink, 0);
}

PyObject *us_py_allocator_purge(PyObject *self, PyObject *unused)
{
    (void)unused;
    return run(self, work_purge, 0);
}

static PyObject *run_for_nothing(PyObject *self, uint64_t (*work)(struct us_allocator *, int64_t))
{
    PyObject *result = run(self, work, 0);
    if (!result)
        return NULL;
    Py_DECREF(result);
    Py_RETURN_NONE;
}

PyObject *us_py_allocator_flush(PyObject *self, PyObject *unused)
{
    (void)unused;
    return run_for_nothing(self, work_flush);
}

static uint64_t work_rcu_barrier(struct us_allocator *core, int64_t unused)
{
    (void)unused;
    us_allocator_rcu_barrier(core);
    return 0;
}

PyObject *us_py_allocator_rcu_barrier(PyObject *self, PyObject *unused)
{
    (void)unused;
    return run_for_nothing(self, work_rcu_barrier);
}

PyObject *us_py_allocator_expire(PyObject *op, PyObject *args, PyObject *kwargs)
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

PyObject *us_py_allocator_advance(PyObject *self, PyObject *value)
{
    long long delta = PyLong_AsLongLong(value);
    if (delta == -1 && PyErr_Occurred())
        return NULL;
    return run(self, work_advance, delta);
}

PyObject *us_py_allocator_reaper_start(PyObject *op, PyObject *value)
{
    struct us_py_call call;
    struct us_error error;
    uint64_t number;
    unsigned long long period = PyLong_AsUnsignedLongLong(value);
    if (period == UINT64_MAX && PyErr_Occurred())
        return NULL;
    struct us_allocator *core = us_py_enter_allocator(&call, (Allocator *)op);
    if (!core)
        return NULL;
    us_py_release(&call);
    enum us_status status = us_allocator_reaper_start(core, period, &number, &error);
    us_py_acquire(&call);
    if (status != US_OK)
        us_py_raise(((Allocator *)op)->state, &error, NULL);
    us_py_leave(&call);
    return status == US_OK ? PyLong_FromUnsignedLongLong(number) : NULL;
}

static uint64_t work_reaper_stop(struct us_allocator *core, int64_t number)
{
    us_allocator_reaper_stop(core, (uint64_t)number);
    return 0;
}

static uint64_t work_reaper_number(struct us_allocator *core, int64_t unused)
{
    (void)unused;
    return us_allocator_reaper_number(core);
}

PyObject *us_py_allocator_reaper_stop(PyObject *self, PyObject *value)
{
    long long number = PyLong_AsLongLong(value);
    if (number == -1 && PyErr_Occurred())
        return NULL;
    return run(self, work_reaper_stop, number);
}

PyObject *us_py_allocator_reaper_number(PyObject *self, PyObject *unused)
{
    (void)unused;
    return run(self, work_reaper_number, 0);
}

PyObject *us_py_allocator_on_cpu(PyObject *op, PyObject *value)
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

/* ---- CPUs in use ----------------------------------------------------------------------------- */

static PyObject *change_cpu(PyObject *op, PyObject *value,
                            enum us_status (*change)(struct us_allocator *, unsigned,
                                                     struct us_error *))
{
    struct us_py_call call;
    struct us_error error;
    unsigned long cpu = PyLong_AsUnsignedLong(value);
    if (PyErr_Occurred())
        return NULL;
    struct us_allocator *core = us_py_enter_allocator(&call, (Allocator *)op);
    if (!core)
        return NULL;
    us_py_release(&call);
    enum us_status status = change(core, (unsigned)cpu, &error);
    us_py_acquire(&call);
    us_py_leave(&call);
    if (status != US_OK)
        return us_py_raise(((Allocator *)op)->state, &error, NULL);
    Py_RETURN_NONE;
}

PyObject *us_py_allocator_offline_cpu(PyObject *self, PyObject *value)
{
    return change_cpu(self, value, us_allocator_offline_cpu);
}

PyObject *us_py_allocator_online_cpu(PyObject *self, PyObject *value)
{
    return change_cpu(self, value, us_allocator_online_cpu);
}

PyObject *us_py_allocator_online(PyObject *op, PyObject *unused)
{
    struct us_py_call call;
    (void)unused;
    struct us_allocator *core = us_py_enter_allocator(&call, (Allocator *)op);
    if (!core)
        return NULL;
    PyObject *tuple = PyTuple_New(core->machine->ncpus);
    for (unsigned cpu = 0; tuple && cpu < core->machine->ncpus; cpu++)
        PyTuple_SET_ITEM(tuple, cpu, PyBool_FromLong(us_allocator_cpu_online(core, cpu)));
    us_py_leave(&call);
    return tuple;
}

/* Sets the calling thread's memory policy (nodes, interleave or preferred); returns the old one. */
PyObject *us_py_allocator_memory_policy(PyObject *op, PyObject *args)
{
    struct us_py_call call;
    struct us_task_policy policy, old;
    struct us_error error = {.status = US_OK};
    PyObject *tuple;
    unsigned n;
    int interleave;
    if (!PyArg_ParseTuple(args, "O!p:_memory_policy", &PyTuple_Type, &tuple, &interleave))
        return NULL;
    unsigned *nodes = us_py_numbers(tuple, &n);
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
PyObject *us_py_allocator_memory_policy_restore(PyObject *op, PyObject *bytes)
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

PyObject *us_py_allocator_fail(PyObject *op, PyObject *args)
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
