/* py_views.c - what can be seen of caches and allocators: plain tuples and words, which the Python
 * package turns into statistics, tables and texts. */
#include "python/py_unislab.h"

#include <stdlib.h>
#include <string.h>

typedef struct us_py_cache Cache;
typedef struct us_py_allocator Allocator;

/* Appends a new reference to a list; false with an exception. */
static bool append(PyObject *list, PyObject *item)
{
    if (!item)
        return false;
    int result = PyList_Append(list, item);
    Py_DECREF(item);
    return result == 0;
}

static PyObject *optional(long number)
{
    return number < 0 ? Py_NewRef(Py_None) : PyLong_FromLong(number);
}

/* ---- statistics ------------------------------------------------------------------------------ */

PyObject *us_py_cache_stats(PyObject *op, PyObject *exact_object)
{
    Cache *self = (Cache *)op;
    struct us_py_call call;
    uint64_t *values;
    int exact = PyObject_IsTrue(exact_object);
    if (exact < 0)
        return NULL;
    struct us_cache *core = us_py_enter_cache(&call, self);
    if (!core)
        return NULL;
    const size_t rows = us_stats_rows(core->policy, NULL, NULL, 0);
    PyObject *words = us_py_words(self->allocator->state, rows * core->machine->ncpus, &values);
    if (words) {
        us_py_release(&call);
        us_cache_stats(core, exact, values);
        us_py_acquire(&call);
    }
    us_py_leave(&call);
    return words;
}

static PyObject *account_dict(const struct us_account *a)
{
#define PAIR(field) #field, (unsigned long long)a->field
    return Py_BuildValue("{sKsKsKsKsKsKsKsKsKsKsKsK}", PAIR(reserved), PAIR(live), PAIR(queued),
                         PAIR(free_in_slabs), PAIR(waste), PAIR(live_objects), PAIR(queued_objects),
                         PAIR(free_objects), PAIR(slabs), PAIR(objects), PAIR(partial),
                         PAIR(cpu_slabs));
#undef PAIR
}

PyObject *us_py_cache_account(PyObject *op, PyObject *unused)
{
    struct us_py_call call;
    struct us_account account;
    (void)unused;
    struct us_cache *core = us_py_enter_cache(&call, (Cache *)op);
    if (!core)
        return NULL;
    us_py_release(&call);
    us_cache_account(core, &account);
    us_py_acquire(&call);
    us_py_leave(&call);
    return account_dict(&account);
}

PyObject *us_py_cache_names(PyObject *op, PyObject *unused)
{
    struct us_py_call call;
    (void)unused;
    struct us_cache *core = us_py_enter_cache(&call, (Cache *)op);
    if (!core)
        return NULL;
    const size_t room = us_cache_names(core, NULL, 0) + 16; /* some more may come meanwhile */
    char (*names)[US_NAME_MAX] = PyMem_Calloc(room, sizeof *names);
    size_t n = names ? us_cache_names(core, names, room) : 0;
    us_py_leave(&call);
    PyObject *list = names ? PyList_New(0) : PyErr_NoMemory();
    for (size_t i = 0; list && i < n && i < room; i++)
        if (!append(list, PyUnicode_DecodeUTF8(names[i], (Py_ssize_t)strlen(names[i]), "replace")))
            Py_CLEAR(list);
    PyMem_Free(names);
    return list;
}

PyObject *us_py_allocator_account(PyObject *op, PyObject *unused)
{
    struct us_py_call call;
    struct us_account account;
    struct us_memory_account memory;
    (void)unused;
    struct us_allocator *core = us_py_enter_allocator(&call, (Allocator *)op);
    if (!core)
        return NULL;
    us_py_release(&call);
    us_allocator_account(core, &account, &memory);
    us_py_acquire(&call);
    us_py_leave(&call);
#define PAIR(field) #field, (unsigned long long)memory.field
    PyObject *rest =
        Py_BuildValue("{sKsKsKsKsKsKsK}", PAIR(reserved_peak), PAIR(metadata), PAIR(metadata_peak),
                      PAIR(resident), PAIR(resident_peak), PAIR(address_range), PAIR(budget));
#undef PAIR
    PyObject *dict = rest ? account_dict(&account) : NULL;
    if (dict && PyDict_Update(dict, rest) < 0)
        Py_CLEAR(dict);
    Py_XDECREF(rest);
    return dict;
}

PyObject *us_py_allocator_locks(PyObject *op, PyObject *unused)
{
    static const char *const name[US_LOCK_NCLASSES] = {
#define US_ROW(id, name, help) name,
        US_LOCK_CLASSES(US_ROW)
#undef US_ROW
    };
    struct us_py_call call;
    uint64_t acquired[US_LOCK_NCLASSES], contended[US_LOCK_NCLASSES];
    (void)unused;
    struct us_allocator *core = us_py_enter_allocator(&call, (Allocator *)op);
    if (!core)
        return NULL;
    us_allocator_locks(core, acquired, contended);
    us_py_leave(&call);
    PyObject *list = PyList_New(0);
    for (unsigned i = 0; list && i < US_LOCK_NCLASSES; i++)
        if (!append(list, Py_BuildValue("sKK", name[i], (unsigned long long)acquired[i],
                                        (unsigned long long)contended[i])))
            Py_CLEAR(list);
    return list;
}

PyObject *us_py_allocator_node_memory(PyObject *op, PyObject *node_object)
{
    struct us_py_call call;
    struct us_node_memory m;
    int node;
    struct us_allocator *core = us_py_enter_allocator(&call, (Allocator *)op);
    if (!core)
        return NULL;
    bool ok = us_py_one_node(node_object, core->machine, &node);
    if (ok)
        us_memory_node(core->memory, (unsigned)node, &m);
    us_py_leave(&call);
    if (!ok)
        return NULL;
    PyObject *blocks = PyList_New(0);
    for (unsigned i = 0; blocks && i <= US_MAX_ORDER; i++)
        if (!append(blocks, PyLong_FromUnsignedLongLong(m.free_blocks[i])))
            Py_CLEAR(blocks);
#define PAIR(field) #field, (unsigned long long)m.field
    return blocks ? Py_BuildValue("{sKsKsKsKsKsKsKsKsKsN}", PAIR(managed), PAIR(free), PAIR(min),
                                  PAIR(low), PAIR(high), PAIR(allocs), PAIR(frees), PAIR(fallbacks),
                                  PAIR(failures), "free_blocks", blocks)
                  : NULL;
#undef PAIR
}

/* ---- slabs, queues, objects
 * ------------------------------------------------------------------------ */

static PyObject *slab_rows(const struct us_snapshot *s)
{
    static const char *const place[] = {"full", "partial", "cpu", "large", "free"};
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < s->nslabs; i++) {
        const struct us_slab_row *r = &s->slab[i];
        PyObject *row =
            Py_BuildValue("KiiIIIINsN", (unsigned long long)r->address, (int)r->node, (int)r->order,
                          r->objects, r->in_use, r->free, r->queued, optional(r->cpu),
                          place[r->place], optional((long)r->position));
        if (!append(list, row))
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *stock_addresses(const struct us_snapshot *s, const struct us_stock_row *r)
{
    PyObject *list = PyList_New((Py_ssize_t)r->stock.objects);
    for (uint32_t i = 0; list && i < r->stock.objects; i++) {
        PyObject *address = PyLong_FromUnsignedLongLong(s->address[r->first + i]);
        if (address)
            PyList_SET_ITEM(list, (Py_ssize_t)i, address);
        else
            Py_CLEAR(list);
    }
    return list;
}

static PyObject *stock_rows(const struct us_snapshot *s)
{
    static const char *const kind[] = {"cpu", "shared", "alien", "prefilled"};
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < s->nstocks; i++) {
        const struct us_stock *t = &s->stock[i].stock;
        PyObject *addresses = stock_addresses(s, &s->stock[i]);
        PyObject *row =
            addresses ? Py_BuildValue("ssNNNIION", kind[t->kind % 4], t->name, optional(t->cpu),
                                      optional(t->domain), optional(t->node), t->objects,
                                      t->capacity, t->touched ? Py_True : Py_False, addresses)
                      : NULL;
        if (!append(list, row))
            Py_CLEAR(list);
    }
    return list;
}

PyObject *us_py_cache_snapshot(PyObject *op, PyObject *unused)
{
    Cache *self = (Cache *)op;
    struct us_py_call call;
    struct us_snapshot snapshot;
    struct us_error error;
    (void)unused;
    struct us_cache *core = us_py_enter_cache(&call, self);
    if (!core)
        return NULL;
    us_py_release(&call);
    enum us_status status = us_cache_snapshot(core, &snapshot, &error);
    us_py_acquire(&call);
    us_py_leave(&call);
    if (status != US_OK)
        return us_py_raise(self->allocator->state, &error, NULL);
    PyObject *slabs = slab_rows(&snapshot);
    PyObject *stocks = slabs ? stock_rows(&snapshot) : NULL;
    us_snapshot_free(&snapshot);
    if (!stocks) {
        Py_XDECREF(slabs);
        return NULL;
    }
    return Py_BuildValue("NN", slabs, stocks);
}

PyObject *us_py_cache_live(PyObject *op, PyObject *unused)
{
    Cache *self = (Cache *)op;
    struct us_py_call call;
    uint64_t *words = NULL;
    size_t n = 0, room;
    (void)unused;
    struct us_cache *core = us_py_enter_cache(&call, self);
    if (!core)
        return NULL;
    us_py_release(&call);
    do { /* others may allocate between the two calls */
        free(words);
        room = us_cache_live(core, NULL, 0) + 1024;
        words = malloc(room * sizeof *words);
        n = words ? us_cache_live(core, words, room) : 0;
    } while (n > room);
    us_py_acquire(&call);
    us_py_leave(&call);
    if (!words)
        return PyErr_NoMemory();
    uint64_t *out;
    PyObject *result = us_py_words(self->allocator->state, n, &out);
    if (result)
        memcpy(out, words, n * sizeof *out);
    free(words);
    return result;
}

/* ---- validation
 * --------------------------------------------------------------------------------------- */

static PyObject *histogram_dict(const struct us_validation *v)
{
    PyObject *dict = PyDict_New();
    for (size_t i = 0; dict && i < v->histogram_length; i++) {
        if (!v->histogram[i])
            continue;
        PyObject *key = PyLong_FromSize_t(i);
        PyObject *value = PyLong_FromUnsignedLongLong(v->histogram[i]);
        if (!key || !value || PyDict_SetItem(dict, key, value) < 0)
            Py_CLEAR(dict);
        Py_XDECREF(key);
        Py_XDECREF(value);
    }
    return dict;
}

static PyObject *misuse_list(const struct us_validation *v)
{
    PyObject *list = PyList_New(0);
    for (size_t i = 0; list && i < v->nmisuse; i++) {
        const struct us_misuse *m = &v->misuse[i];
        if (!append(list, Py_BuildValue("KKs", (unsigned long long)m->address,
                                        (unsigned long long)m->slab_base, m->text)))
            Py_CLEAR(list);
    }
    return list;
}

PyObject *us_py_cache_validate(PyObject *op, PyObject *unused)
{
    Cache *self = (Cache *)op;
    struct us_py_call call;
    struct us_validation *v = PyMem_Calloc(1, sizeof *v);
    struct us_error error;
    (void)unused;
    if (!v)
        return PyErr_NoMemory();
    struct us_cache *core = us_py_enter_cache(&call, self);
    if (!core) {
        PyMem_Free(v);
        return NULL;
    }
    us_py_release(&call);
    enum us_status status = us_cache_validate(core, v, &error);
    us_py_acquire(&call);
    us_py_leave(&call);
    PyObject *result = NULL;
    if (status != US_OK && status != US_ECORRUPT) {
        us_py_raise(self->allocator->state, &error, NULL);
    } else {
        PyObject *histogram = histogram_dict(v), *misuse = misuse_list(v);
        if (histogram && misuse)
            result =
                Py_BuildValue("KKKKKKKKOOs", (unsigned long long)v->slabs,
                              (unsigned long long)v->total, (unsigned long long)v->available,
                              (unsigned long long)v->checked, (unsigned long long)v->unchecked,
                              (unsigned long long)v->onqueue, (unsigned long long)v->errors,
                              (unsigned long long)v->partial_slabs, histogram, misuse, v->text);
        Py_XDECREF(histogram);
        Py_XDECREF(misuse);
        us_validation_free(v);
    }
    PyMem_Free(v);
    return result;
}

/* ---- tunables and counters
 * ------------------------------------------------------------------------------ */

static PyObject *choice_pairs(const struct us_tunable *t)
{
    PyObject *list = PyList_New(0);
    for (const struct us_choice *c = t->choices; list && c && c->text; c++)
        if (!append(list, Py_BuildValue("sL", c->text, (long long)c->code)))
            Py_CLEAR(list);
    PyObject *tuple = list ? PyList_AsTuple(list) : NULL;
    Py_XDECREF(list);
    return tuple;
}

/* (name, value, text, default, min, max, unit, readonly, at creation only, help, choices); a choice
 * is (text, code). */
static PyObject *tunable_row(const struct us_tunable *t, PyObject *value, const char *text)
{
    PyObject *choices = choice_pairs(t);
    if (!choices || !value) {
        Py_XDECREF(choices);
        Py_XDECREF(value);
        return NULL;
    }
    return Py_BuildValue(
        "sNzLLLsOOsN", t->name, value, text, (long long)t->def, (long long)t->min,
        (long long)t->max, t->unit ? t->unit : "", t->flags & US_T_READONLY ? Py_True : Py_False,
        t->flags & US_T_CREATE ? Py_True : Py_False, t->help ? t->help : "", choices);
}

PyObject *us_py_cache_tunables(PyObject *op, PyObject *unused)
{
    Cache *self = (Cache *)op;
    struct us_py_call call;
    struct us_error error;
    (void)unused;
    struct us_cache *core = us_py_enter_cache(&call, self);
    if (!core)
        return NULL;
    PyObject *list = PyList_New(0);
    for (unsigned i = 0; list && i < core->policy->ntunables; i++) {
        const struct us_tunable *t = &core->policy->tunables[i];
        int64_t value = 0;
        const char *text = NULL;
        enum us_status status = us_tunable_get(core, t->name, &value, &text, &error);
        PyObject *number = status == US_OK ? PyLong_FromLongLong(value) : Py_NewRef(Py_None);
        if (!append(list, tunable_row(t, number, text)))
            Py_CLEAR(list);
    }
    us_py_leave(&call);
    return list;
}

/* An unknown name is an error of its own, so that attributes and keys behave as elsewhere. */
static PyObject *raise_tunable(struct us_py_state *state, const struct us_cache *core,
                               const char *name, const struct us_error *error)
{
    if (us_tunable_find(core->policy, name, NULL))
        return us_py_raise(state, error, NULL);
    PyErr_SetString(state->unknown_name_error ? state->unknown_name_error : PyExc_ValueError,
                    error->text);
    return NULL;
}

PyObject *us_py_cache_tunable_get(PyObject *op, PyObject *name_object)
{
    Cache *self = (Cache *)op;
    struct us_py_call call;
    struct us_error error;
    int64_t value = 0;
    const char *text = NULL, *name = PyUnicode_AsUTF8(name_object);
    if (!name)
        return NULL;
    struct us_cache *core = us_py_enter_cache(&call, self);
    if (!core)
        return NULL;
    PyObject *result;
    if (us_tunable_get(core, name, &value, &text, &error) == US_OK)
        result = Py_BuildValue("Lz", (long long)value, text);
    else
        result = raise_tunable(self->allocator->state, core, name, &error);
    us_py_leave(&call);
    return result;
}

PyObject *us_py_cache_tunable_set(PyObject *op, PyObject *const *args, Py_ssize_t nargs)
{
    Cache *self = (Cache *)op;
    struct us_py_call call;
    struct us_error error;
    if (nargs != 2) {
        PyErr_SetString(PyExc_TypeError, "_tunable_set() takes a name and a text");
        return NULL;
    }
    const char *name = PyUnicode_AsUTF8(args[0]);
    const char *text = name ? PyUnicode_AsUTF8(args[1]) : NULL;
    if (!text)
        return NULL;
    struct us_cache *core = us_py_enter_cache(&call, self);
    if (!core)
        return NULL;
    us_py_release(&call);
    enum us_status status = us_tunable_set(core, name, text, &error);
    us_py_acquire(&call);
    PyObject *result = Py_None;
    if (status != US_OK)
        result = raise_tunable(self->allocator->state, core, name, &error);
    us_py_leave(&call);
    return Py_XNewRef(result);
}

static const struct us_policy *policy_named(PyObject *name_object)
{
    const char *name = PyUnicode_AsUTF8(name_object);
    const struct us_policy *policy = name ? us_policy_find(name) : NULL;
    if (name && !policy) {
        const char *names[64], *near;
        size_t n = 0;
        for (; n < 64 && us_policy_at((unsigned)n); n++)
            names[n] = us_policy_at((unsigned)n)->name;
        near = us_nearest(name, names, n);
        PyErr_Format(PyExc_ValueError, "no policy '%s': %s%s%sunislab.policies() lists them", name,
                     near ? "did you mean '" : "", near ? near : "", near ? "'? " : "");
    }
    return policy;
}

PyObject *us_py_policy_tunables(PyObject *module, PyObject *name)
{
    (void)module;
    const struct us_policy *policy = policy_named(name);
    if (!policy)
        return NULL;
    PyObject *list = PyList_New(0);
    for (unsigned i = 0; list && i < policy->ntunables; i++)
        if (!append(list, tunable_row(&policy->tunables[i], Py_NewRef(Py_None), NULL)))
            Py_CLEAR(list);
    return list;
}

/* (name, help, common counter that it feeds, the one that gives up as much), "" for none. */
static PyObject *counter_row(const struct us_counter *counter, const char *const *common)
{
    return Py_BuildValue("ssss", counter->name, counter->help ? counter->help : "",
                         counter->feeds < US_NCOMMON ? common[counter->feeds] : "",
                         counter->less < US_NCOMMON ? common[counter->less] : "");
}

/* Rows of the statistics, how many of them are the common ones, and rows that only feed those. */
PyObject *us_py_policy_counters(PyObject *module, PyObject *name)
{
    const char *common[US_NCOMMON], *help[US_NCOMMON];
    (void)module;
    const struct us_policy *policy = policy_named(name);
    if (!policy)
        return NULL;
    us_stats_rows(policy, common, help, US_NCOMMON);
    PyObject *shown = PyList_New(0), *hidden = PyList_New(0);
    bool ok = shown && hidden;
    for (unsigned i = 0; ok && i < US_NCOMMON; i++)
        ok = append(shown, Py_BuildValue("ssss", common[i], help[i], "", ""));
    for (unsigned i = 0; ok && i < policy->ncounters; i++) {
        const struct us_counter *counter = &policy->counters[i];
        ok = append(counter->hidden ? hidden : shown, counter_row(counter, common));
    }
    if (ok)
        return Py_BuildValue("NIN", shown, (unsigned)US_NCOMMON, hidden);
    Py_XDECREF(shown);
    Py_XDECREF(hidden);
    return NULL;
}
