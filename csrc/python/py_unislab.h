/* py_unislab.h - what the files of the binding share.
 *
 * The binding holds no allocator logic: it converts arguments, keeps Python objects and C
 * structures alive for one another, and turns errors into exceptions. One source makes two modules,
 * _native and (with US_MODEL) _model. Their types derive from the documented Python classes
 * unislab.Allocator, unislab.Cache and unislab.Object, so that both modules' instances are of one
 * public class, while the hot methods still belong to the exact type of the instance, where the
 * interpreter specialises calls.
 *
 * Lifetime. An Object keeps its Cache, a Cache its Allocator. The C cache may outlive its Python
 * handle: what belongs to it (constructor, counts) lives in a record of the Allocator, and a handle
 * is made again on demand. Exported buffers are counted by cache; nothing is given back to the
 * system under one.
 *
 * Ending. A call that may run without the GIL *enters*: it pins what it works on. Who ends
 * something marks it (new calls wait), waits without the GIL until no pin is left, works, and
 * settles. Plain hot calls keep the GIL, so they need no pin: they test `hot`, which is NULL while
 * an end is under way, in free-threaded builds always, and for caches with a constructor in Python
 * always.
 *
 * The GIL is dropped before anything that shuts the gate, and no lock of the core is held while
 * Python code runs (a constructor): the two cannot wait for each other.
 */
#ifndef US_PY_UNISLAB_H
#define US_PY_UNISLAB_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

#include <pthread.h>

#include "cache/cache.h"

#ifdef US_MODEL
#define US_PY_MODULE "unislab._model"
#else
#define US_PY_MODULE "unislab._native"
#endif

/* ---- module state ---------------------------------------------------------------------------- */

/* Every Python reference of a module; row: name. One list makes struct, traverse and clear. */
#define US_PY_REFERENCES(row)                                                                \
    row(allocator_type) row(cache_type) row(object_type) row(sheaf_type) row(addresses_type) \
        row(corruption_error) row(limit_error) row(live_error) row(unknown_name_error)       \
            row(as_addresses) row(frombuffer) row(uint64)

struct us_py_state {
#define US_ROW(name) PyObject *name;
    US_PY_REFERENCES(US_ROW)
#undef US_ROW
    struct us_py_allocator *allocators; /* all that are open, for peek and poke */
    pthread_mutex_t allocators_lock;
};

extern struct PyModuleDef us_py_module;
struct us_py_state *
us_py_state_of(PyTypeObject *type); /* of a type or its subclass; NULL + error */

/* ---- objects --------------------------------------------------------------------------------- */

/* The state of something that can end. */
struct us_py_life {
    _Atomic int64_t pins;
    _Atomic int ending; /* somebody is ending it */
    _Atomic int ended;
    _Atomic unsigned forks;   /* when pins and ending were last known to be of this process */
    _Atomic(uintptr_t) ender; /* the thread that ends it, while one does */
};

/* What the allocator keeps for one of its caches as long as that exists. */
struct us_py_record {
    unsigned id;              /* of the cache: its address may be used again, its id never is */
    PyObject *handle;         /* weak reference to the struct us_py_cache, or NULL */
    PyObject *constructor;    /* callable, or NULL */
    PyObject *failed;         /* set of addresses whose constructor raised, or NULL */
    _Atomic uint64_t dropped; /* Objects that were dropped while live */
    struct us_py_record *next;
};

struct us_py_allocator {
    PyObject ob_base;
    struct us_allocator *core; /* valid within enter and leave, NULL once destroyed */
    PyObject *module; /* keeps the state: a type may lose its module before its instances go */
    struct us_py_state *state;
    struct us_py_life life;
    struct us_py_record *records;
    PyObject *machine;           /* the Python object it was made for, or None */
    PyObject *policy, *topology; /* a str; (cpu_node, cpu_domain) */
    unsigned long long budget;
    bool debug_f;
    PyObject *weakrefs;
    struct us_py_allocator *next, **link; /* in the module's list */
};

struct us_py_cache {
    PyObject ob_base;
    struct us_cache *hot; /* for calls that keep the GIL; NULL: go the careful way */
    PyObject *freed;      /* the integer freed last: the next allocation mostly returns it */
    long freed_address;   /* its value */
    struct us_cache *core;
    struct us_py_allocator *allocator;
    struct us_py_record *record;
    struct us_py_life life;
    _Atomic int64_t exports; /* buffers of its objects that are out */
    uint64_t dropped;        /* of the record, once that is gone */
    size_t size, stride, align;
    unsigned order, objects, flags;
    bool general;
    PyObject *name;
    PyObject *weakrefs;
};

/* ---- calls ----------------------------------------------------------------------------------- */

/* A call that works on an allocator or a cache: pinned from enter to leave. */
struct us_py_call {
    struct us_py_life *life;
    const struct us_py_allocator *owner;
    struct us_py_call *outer; /* under way on this thread: Python code may run within a call */
    unsigned forks;           /* of life, when it was pinned */
    PyThreadState *saved;
#if defined(US_MODEL) && defined(Py_GIL_DISABLED)
    PyCriticalSection section; /* the scripted machine runs one call at a time */
#endif
};

/* Pins and returns the C structure; NULL with RuntimeError when closed or destroyed. The argument
 * must be an Allocator (a Cache) of this module. */
struct us_allocator *us_py_enter_allocator(struct us_py_call *call, struct us_py_allocator *self);
struct us_cache *us_py_enter_cache(struct us_py_call *call, struct us_py_cache *self);
void us_py_leave(struct us_py_call *call);
/* Drops the GIL within a call, and takes it back. In the model both do nothing: its machine is
 * scripted, one call at a time. */
void us_py_release(struct us_py_call *call);
void us_py_acquire(struct us_py_call *call);

/* Ending: true = this thread ends it now, and nobody else is inside. false: it had ended before, or
 * (with an exception) the place forbids it, or a signal handler raised while it waited for others.
 * Nothing that may run Python code, such as raising, belongs between begin and settle. `whole`: the
 * allocator that is closed, or NULL. */
bool us_py_end_begin(struct us_py_life *life, const struct us_py_allocator *whole,
                     const char *what);
/* The same for a cache of the allocator that is being closed: waits, whatever happens. */
void us_py_end_begin_within(struct us_py_life *life);
void us_py_life_setup(void); /* once, before the first use */
void us_py_end_settle(struct us_py_life *life, bool ended);
/* How many constructors in Python run on this thread: ending and waiting are refused. */
extern _Thread_local unsigned us_py_constructing;

/* ---- errors ---------------------------------------------------------------------------------- */

/* Raises what fits; always returns NULL. `busy` is the exception for US_EBUSY (NULL =
 * RuntimeError). */
PyObject *us_py_raise(struct us_py_state *state, const struct us_error *error, PyObject *busy);
/* CorruptionError with its attributes, which the error's text names; returns NULL. */
PyObject *us_py_raise_misuse(struct us_py_state *state, const struct us_error *error);
/* Raises why the allocation of n objects of `size` bytes failed; returns NULL. */
PyObject *us_py_raise_failure(struct us_py_state *state, struct us_cache *cache, size_t n,
                              size_t size);

/* ---- arguments ------------------------------------------------------------------------------- */

/* An address: any integer; false with an exception. */
bool us_py_address(PyObject *value, uint64_t *out);
/* A number within limits; false with an exception, in which `what` stands. */
bool us_py_count(PyObject *value, const char *what, Py_ssize_t least, Py_ssize_t most,
                 Py_ssize_t *out);
/* node, zero and thisnode keywords of a vectorcall; false with an exception. */
bool us_py_placement(const char *function, PyObject *const *args, PyObject *kwnames,
                     const struct us_machine *machine, unsigned *flags, int *node);
/* The i-th of a list of (name, text) tuples; the strings belong to the list. */
bool us_py_pair_texts(PyObject *pairs, Py_ssize_t i, const char **name, const char **text);
/* A tuple of numbers as an array of PyMem; NULL with an exception, or when the tuple is None. */
unsigned *us_py_numbers(PyObject *tuple, unsigned *n);
/* A node of the machine, None being any; false with an exception. */
bool us_py_node(PyObject *value, const struct us_machine *machine, int *node);
bool us_py_one_node(PyObject *value, const struct us_machine *machine, int *node);

/* ---- between the files ----------------------------------------------------------------------- */

/* A buffer of n native 64-bit words, exported with format "Q"; *words points into it. */
PyObject *us_py_words(struct us_py_state *state, size_t n, uint64_t **words);
/* The NumPy array over such a buffer; NumPy is imported when the first is wanted. */
PyObject *us_py_array(struct us_py_state *state, PyObject *words);
/* The handle of a cache, made when there is none. The caller has entered the allocator, and read
 * the id while the cache could not go away. NULL without an exception: it is gone by now. */
PyObject *us_py_cache_handle(struct us_py_allocator *owner, struct us_cache *cache, unsigned id);
/* False with an exception for the pseudo-cache of large allocations. */
bool us_py_hands_out(const struct us_py_cache *self);
/* Unlinks and frees the record of a cache that is gone. */
void us_py_record_drop(struct us_py_allocator *owner, struct us_py_record *record);
/* The handle of a record as a new reference; NULL when it is gone. */
struct us_py_cache *us_py_live_handle(const struct us_py_record *record);
/* Lets plain calls take the short way where they may. */
void us_py_set_hot(struct us_py_cache *self);
/* The C constructor of caches whose constructor is a Python callable; arg: struct us_py_record. */
void us_py_constructor(void *object, void *arg);
/* Allocates as the callable may raise: object or NULL with an exception. Cache entered, GIL held.
 */
void *us_py_alloc_constructed(struct us_py_cache *self, unsigned flags, int node);
/* Does work that may make slabs of a cache whose constructor is callable; false with the exception
 * that one raised. GIL held. */
bool us_py_while_constructing(struct us_py_cache *self, void (*work)(void *), void *context);
/* The object if it is constructed, now at the latest; else it is freed: NULL with an exception. */
void *us_py_finish_constructed(struct us_py_cache *self, void *object);
PyObject *us_py_object_new(struct us_py_cache *cache, void *address, bool owned);
/* Of one that is not owned: no new views. False when there are some. */
bool us_py_object_end_loan(PyObject *object);
/* ResourceWarning about a handle that is dropped; an exception that is set stays. */
void us_py_warn_dropped(PyObject *handle, const char *format);
/* Frees an owned Object once. */
PyObject *us_py_object_free(PyObject *object);
/* The same after a grace period, if it is of this cache. */
PyObject *us_py_object_free_rcu(struct us_py_cache *cache, PyObject *object);
PyObject *us_py_fastcall_nothing(PyObject *self, PyObject *const *args, Py_ssize_t nargs);

/* Method tables and specs by file. */
extern PyType_Spec us_py_allocator_spec, us_py_cache_spec, us_py_object_spec, us_py_sheaf_spec,
    us_py_addresses_spec;
PyObject *us_py_cache_alloc_bulk(PyObject *self, PyObject *const *args, Py_ssize_t nargs,
                                 PyObject *kwnames);
PyObject *us_py_cache_free_bulk(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *us_py_cache_prefill_sheaf(PyObject *self, PyObject *value);
PyObject *us_py_cache_stats(PyObject *self, PyObject *exact);
PyObject *us_py_cache_account(PyObject *self, PyObject *unused);
PyObject *us_py_cache_snapshot(PyObject *self, PyObject *unused);
PyObject *us_py_cache_validate(PyObject *self, PyObject *unused);
PyObject *us_py_cache_live(PyObject *self, PyObject *unused);
PyObject *us_py_cache_names(PyObject *self, PyObject *unused);
PyObject *us_py_cache_tunables(PyObject *self, PyObject *unused);
PyObject *us_py_cache_tunable_get(PyObject *self, PyObject *name);
PyObject *us_py_cache_tunable_set(PyObject *self, PyObject *const *args, Py_ssize_t nargs);
PyObject *us_py_allocator_create_cache(PyObject *op, PyObject *args);
PyObject *us_py_allocator_caches(PyObject *op, PyObject *unused);
PyObject *us_py_allocator_named(PyObject *op, PyObject *name);
PyObject *us_py_allocator_kmalloc(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                  PyObject *kwnames);
PyObject *us_py_allocator_krealloc(PyObject *op, PyObject *const *args, Py_ssize_t nargs,
                                   PyObject *kwnames);
PyObject *us_py_allocator_kfree(PyObject *op, PyObject *value);
PyObject *us_py_allocator_kfree_rcu(PyObject *op, PyObject *value);
PyObject *us_py_allocator_rcu_barrier(PyObject *self, PyObject *unused);
PyObject *us_py_allocator_ksize(PyObject *op, PyObject *value);
PyObject *us_py_allocator_shrink(PyObject *self, PyObject *unused);
PyObject *us_py_allocator_purge(PyObject *self, PyObject *unused);
PyObject *us_py_allocator_flush(PyObject *self, PyObject *unused);
PyObject *us_py_allocator_expire(PyObject *op, PyObject *args, PyObject *kwargs);
PyObject *us_py_allocator_advance(PyObject *self, PyObject *value);
PyObject *us_py_allocator_reaper_start(PyObject *op, PyObject *value);
PyObject *us_py_allocator_reaper_stop(PyObject *self, PyObject *value);
PyObject *us_py_allocator_reaper_number(PyObject *self, PyObject *unused);
PyObject *us_py_allocator_on_cpu(PyObject *op, PyObject *value);
PyObject *us_py_allocator_offline_cpu(PyObject *self, PyObject *value);
PyObject *us_py_allocator_online_cpu(PyObject *self, PyObject *value);
PyObject *us_py_allocator_online(PyObject *op, PyObject *unused);
PyObject *us_py_allocator_memory_policy(PyObject *op, PyObject *args);
PyObject *us_py_allocator_memory_policy_restore(PyObject *op, PyObject *bytes);
PyObject *us_py_allocator_fail(PyObject *op, PyObject *args);
PyObject *us_py_allocator_account(PyObject *self, PyObject *unused);
PyObject *us_py_allocator_locks(PyObject *self, PyObject *unused);
PyObject *us_py_allocator_node_memory(PyObject *self, PyObject *node);
PyObject *us_py_topology(const struct us_machine *machine); /* (cpu_node, cpu_domain) */
PyObject *us_py_policy_tunables(PyObject *module, PyObject *name);
PyObject *us_py_policy_counters(PyObject *module, PyObject *name);
int us_py_probe_register(PyObject *module); /* probes of this machine, for calibration */
int us_py_info_register(PyObject *module);  /* module functions: build_info, policies, peek, ... */

#endif
