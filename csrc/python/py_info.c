/* py_info.c - functions of the module: what was built, which policies there are, peek and poke. */
#include "python/py_unislab.h"

#include <string.h>

#define TEXT_(x) #x
#define TEXT(x)  TEXT_(x)

#ifdef __clang__
#define COMPILER "clang " __clang_version__
#else
#define COMPILER "gcc " __VERSION__
#endif

static const char build_flags[] = ""
#ifdef US_MODEL
                                  " US_MODEL"
#endif
#ifdef US_CHECK
                                  " US_CHECK"
#endif
#ifdef __OPTIMIZE__
                                  " optimized"
#endif
#ifdef __SANITIZE_ADDRESS__
                                  " address"
#endif
#ifdef __SANITIZE_THREAD__
                                  " thread"
#endif
    ;

static const char *mode_name(enum us_mode mode)
{
    switch (mode) {
    case US_MODE_RSEQ:
        return "rseq";
    case US_MODE_SLOT:
        return "slot";
    case US_MODE_CONTROL:
        return "control";
    case US_MODE_MODEL:
        return "model";
    }
    return "unknown";
}

static PyObject *raise_plain(const struct us_error *error)
{
    PyErr_SetString(error->status == US_ENOMEM ? PyExc_MemoryError : PyExc_RuntimeError,
                    error->text);
    return NULL;
}

static PyObject *build_info(PyObject *module, PyObject *unused)
{
    struct us_error error;
    (void)module, (void)unused;
    struct us_machine *m = us_machine_create(NULL, 0, 0, &error);
    if (!m)
        return raise_plain(&error);
    PyObject *info = Py_BuildValue(
        "{ssssssssssss"
        "sKsI}",
        "version", US_VERSION, "build_id", US_BUILD_ID, "compiler", COMPILER, "flags",
        build_flags[0] ? build_flags + 1 : build_flags, "mode", mode_name(m->mode), "reason",
        us_machine_mode_reason(), "page_size", (unsigned long long)m->page_size, "cpus", m->ncpus);
    us_machine_destroy(m);
    return info;
}

static PyObject *topology(PyObject *module, PyObject *unused)
{
    struct us_error error;
    (void)module, (void)unused;
    struct us_machine *m = us_machine_create(NULL, 0, 0, &error);
    if (!m)
        return raise_plain(&error);
    PyObject *result = us_py_topology(m);
    us_machine_destroy(m);
    return result;
}

static PyObject *policies(PyObject *module, PyObject *unused)
{
    (void)module, (void)unused;
    PyObject *list = PyList_New(0);
    for (unsigned i = 0; list && us_policy_at(i); i++) {
        const struct us_policy *p = us_policy_at(i);
        PyObject *row = Py_BuildValue("ss", p->name, p->title ? p->title : "");
        if (!row || PyList_Append(list, row) < 0)
            Py_CLEAR(list);
        Py_XDECREF(row);
    }
    return list;
}

/* ---- peek and poke --------------------------------------------------------------------------- */

/* True when every byte lies in a slab of an open allocator of this module. */
static bool in_slabs(const struct us_slabs *slabs, uint64_t address, size_t n)
{
    const uint64_t page = 1ull << slabs->range.page_shift;
    const uint64_t last = n ? address + n - 1 : address;
    if (last < address)
        return false;
    for (uint64_t a = address & ~(page - 1); a <= last; a += page)
        if (!us_slab_of(slabs, (const void *)(uintptr_t)a))
            return false;
    return true;
}

/* Copies n bytes from (to) an address: 1 done, 0 in no allocator of this module, -1 in a range but
 * not in a slab. The list is locked meanwhile, so that the allocator stays open. */
static int copy_bytes(PyObject *module, uint64_t address, size_t n, char *out, const char *in)
{
    struct us_py_state *state = PyModule_GetState(module);
    int result = 0;
    pthread_mutex_lock(&state->allocators_lock);
    for (struct us_py_allocator *a = state->allocators; a && result == 0; a = a->next) {
        const struct us_slabs *slabs = &a->core->slabs;
        if (!us_in_range(&slabs->range, (const void *)(uintptr_t)address))
            continue;
        result = in_slabs(slabs, address, n) ? 1 : -1;
        if (result > 0 && out)
            memcpy(out, (const void *)(uintptr_t)address, n);
        if (result > 0 && in)
            memcpy((void *)(uintptr_t)address, in, n);
    }
    pthread_mutex_unlock(&state->allocators_lock);
    if (result < 0)
        PyErr_Format(PyExc_ValueError,
                     "%zu bytes at %p do not lie within slabs of the allocator that owns the "
                     "address: expected memory of an object, in use or free",
                     n, (void *)(uintptr_t)address);
    return result;
}

/* bytes, or None when no allocator of this module owns the address. */
static PyObject *peek(PyObject *module, PyObject *args)
{
    unsigned long long address;
    Py_ssize_t n;
    if (!PyArg_ParseTuple(args, "Kn:_peek", &address, &n))
        return NULL;
    PyObject *bytes = PyBytes_FromStringAndSize(NULL, n);
    if (!bytes)
        return NULL;
    int result = copy_bytes(module, address, (size_t)n, PyBytes_AS_STRING(bytes), NULL);
    if (result > 0)
        return bytes;
    Py_DECREF(bytes);
    return result < 0 ? NULL : Py_NewRef(Py_None);
}

static PyObject *poke(PyObject *module, PyObject *args)
{
    unsigned long long address;
    Py_buffer data;
    if (!PyArg_ParseTuple(args, "Ky*:_poke", &address, &data))
        return NULL;
    int result = copy_bytes(module, address, (size_t)data.len, NULL, data.buf);
    PyBuffer_Release(&data);
    return result < 0 ? NULL : PyBool_FromLong(result);
}

static PyMethodDef functions[] = {
    {"build_info", build_info, METH_NOARGS,
     "build_info($module, /)\n--\n\nWhat this module was built from, and what it found here."},
    {"_topology", topology, METH_NOARGS,
     "_topology($module, /)\n--\n\nNode and domain of each CPU of the machine."},
    {"_policies", policies, METH_NOARGS, "_policies($module, /)\n--\n\nNames and titles."},
    {"_policy_tunables", us_py_policy_tunables, METH_O,
     "_policy_tunables($module, policy, /)\n--\n\nRows of a policy's tunables."},
    {"_policy_counters", us_py_policy_counters, METH_O,
     "_policy_counters($module, policy, /)\n--\n\nRows of a policy's statistics."},
    {"_peek", peek, METH_VARARGS, "_peek($module, address, n, /)\n--\n\nBytes at an address."},
    {"_poke", poke, METH_VARARGS, "_poke($module, address, data, /)\n--\n\nWrites bytes."},
    {"_noop", (PyCFunction)(void (*)(void))us_py_fastcall_nothing, METH_FASTCALL,
     "_noop($module, /, *args)\n--\n\nDoes nothing: the price of a call, for benchmarks."},
    {NULL, NULL, 0, NULL},
};

int us_py_info_register(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
