/* py_construct.c - constructors that are Python callables.
 *
 * The core calls a constructor once for each object of a new slab, while the allocation that needed
 * the slab waits. It cannot fail there, so an exception is kept and the allocation raises it
 * afterwards; the slab's further objects are not tried. An object whose constructor raised, or was
 * not called, is remembered and constructed before it is handed out: nobody ever gets one that is
 * not constructed. The GIL is held throughout.
 *
 * A constructor may allocate, so that constructors nest, each level with all frames of an
 * allocation on the C stack: they nest so far only.
 */
#include "python/py_unislab.h"

#define MOST_NESTED 16

/* The allocation under way on this thread, for its constructor calls. */
struct construction {
    struct us_py_cache *cache;
    PyObject *type, *value, *traceback; /* first exception, or NULL */
    struct construction *outer;
};

static _Thread_local struct construction *current;

/* Remembers or forgets that the object at an address is not constructed. */
static int mark(struct us_py_record *record, void *object, bool failed)
{
    if (!failed && !record->failed)
        return 0;
    if (!record->failed && !(record->failed = PySet_New(NULL)))
        return -1;
    PyObject *address = PyLong_FromVoidPtr(object);
    if (!address)
        return -1;
    int result =
        failed ? PySet_Add(record->failed, address) : PySet_Discard(record->failed, address);
    Py_DECREF(address);
    return result < 0 ? -1 : 0;
}

static int is_marked(struct us_py_record *record, void *object)
{
    if (!record->failed || PySet_GET_SIZE(record->failed) == 0)
        return 0;
    PyObject *address = PyLong_FromVoidPtr(object);
    if (!address)
        return -1;
    int found = PySet_Contains(record->failed, address);
    Py_DECREF(address);
    return found;
}

/* Calls the callable with a view that ends with the call; -1 with an exception. */
static int call_with_view(PyObject *callable, PyObject *view)
{
    if (us_py_constructing == MOST_NESTED) {
        PyErr_Format(PyExc_RecursionError,
                     "constructors of caches nest more than %d deep: one allocates from its own "
                     "cache, or they do so in a circle",
                     MOST_NESTED);
        return -1;
    }
    us_py_constructing++;
    PyObject *result = PyObject_CallOneArg(callable, view);
    us_py_constructing--;
    if (!result)
        return -1;
    Py_DECREF(result);
    result = PyObject_CallMethod(view, "release", NULL);
    if (!result)
        return -1;
    Py_DECREF(result);
    return 0;
}

static int construct(struct us_py_cache *cache, void *object)
{
    PyObject *lent = us_py_object_new(cache, object, false);
    PyObject *view = lent ? PyMemoryView_FromObject(lent) : NULL;
    PyObject *callable = Py_XNewRef(cache->record->constructor);
    int result = view ? 0 : -1;
    if (view && callable)
        result = call_with_view(callable, view);
    if (lent && !us_py_object_end_loan(lent) && result == 0) {
        PyErr_Format(PyExc_BufferError,
                     "the constructor of cache %U kept a view of its object; copy what it needs",
                     cache->name);
        result = -1;
    }
    Py_XDECREF(callable);
    Py_XDECREF(view);
    Py_XDECREF(lent);
    return result;
}

/* Keeps the exception that is set, if it is the first. */
static void keep_exception(struct construction *c)
{
    PyObject *type, *value, *traceback;
    PyErr_Fetch(&type, &value, &traceback);
    if (!c->type) {
        c->type = type, c->value = value, c->traceback = traceback;
        return;
    }
    Py_XDECREF(type);
    Py_XDECREF(value);
    Py_XDECREF(traceback);
}

void us_py_constructor(void *object, void *arg)
{
    struct us_py_record *record = arg;
    struct construction *c = current;
    if (!c || c->cache->record != record)
        return; /* only allocations through the handle make slabs of such a cache */
    if (!c->type && mark(record, object, false) == 0 && construct(c->cache, object) == 0)
        return;
    if (PyErr_Occurred())
        keep_exception(c);
    if (mark(record, object, true) < 0)
        keep_exception(c);
}

/* True when the object may be handed out; else an exception is set. */
static bool finish(struct us_py_cache *self, void *object)
{
    int marked = is_marked(self->record, object);
    if (marked <= 0)
        return marked == 0;
    if (construct(self, object) < 0)
        return false;
    return mark(self->record, object, false) == 0;
}

bool us_py_while_constructing(struct us_py_cache *self, void (*work)(void *), void *context)
{
    struct construction c = {.cache = self, .outer = current};
    current = &c;
    work(context);
    current = c.outer;
    if (c.type)
        PyErr_Restore(c.type, c.value, c.traceback);
    return !c.type;
}

void *us_py_finish_constructed(struct us_py_cache *self, void *object)
{
    if (finish(self, object))
        return object;
    us_cache_free(self->core, object);
    return NULL;
}

struct allocation {
    struct us_cache *core;
    unsigned flags;
    int node;
    void *object;
};

static void allocate(void *context)
{
    struct allocation *a = context;
    a->object = us_cache_alloc_node(a->core, a->flags, a->node);
}

void *us_py_alloc_constructed(struct us_py_cache *self, unsigned flags, int node)
{
    struct allocation a = {.core = self->core, .flags = flags, .node = node};
    if (!us_py_while_constructing(self, allocate, &a)) {
        if (a.object)
            us_cache_free(self->core, a.object);
        return NULL;
    }
    if (!a.object) {
        us_py_raise_failure(self->allocator->state, self->core, 1, self->size);
        return NULL;
    }
    return us_py_finish_constructed(self, a.object);
}
