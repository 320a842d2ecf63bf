/* py_module.c - the module: its state, its types, its start and end.
 *
 * Multi-phase initialisation, all references in the state, so that every interpreter has its own
 * module. The three public types are made with the documented Python classes as their bases; for
 * that reason they cannot be immutable types (the interpreter refuses immutable types on mutable
 * bases).
 */
#include "python/py_unislab.h"

#if __has_include("python/py_trace.h")
#include "python/py_trace.h"
#define US_PY_HAS_TRACE 1
#endif
#if __has_include("python/py_run.h")
#include "python/py_run.h"
#define US_PY_HAS_RUN 1
#endif

struct us_py_state *us_py_state_of(PyTypeObject *type)
{
    PyObject *module = PyType_GetModuleByDef(type, &us_py_module);
    return module ? PyModule_GetState(module) : NULL;
}

static PyObject *import_from(const char *module_name, const char *name)
{
    PyObject *module = PyImport_ImportModule(module_name);
    if (!module)
        return NULL;
    PyObject *value = PyObject_GetAttrString(module, name);
    Py_DECREF(module);
    return value;
}

static bool import_all(struct us_py_state *state)
{
    const struct {
        PyObject **slot;
        const char *module, *name;
    } wanted[] = {
        {&state->corruption_error, "unislab.errors", "CorruptionError"},
        {&state->limit_error, "unislab.errors", "LimitExceeded"},
        {&state->live_error, "unislab.errors", "LiveObjectsError"},
        {&state->unknown_name_error, "unislab.errors", "UnknownNameError"},
        {&state->as_addresses, "unislab.addresses", "as_addresses"},
    };
    for (size_t i = 0; i < sizeof wanted / sizeof *wanted; i++) {
        *wanted[i].slot = import_from(wanted[i].module, wanted[i].name);
        if (!*wanted[i].slot)
            return false;
    }
    return true;
}

/* A type of the module whose base is a class of the Python package (or object). */
static PyObject *add_type(PyObject *module, PyType_Spec *spec, const char *base_module,
                          const char *base_name)
{
    PyObject *base = NULL;
    if (base_module && !(base = import_from(base_module, base_name)))
        return NULL;
    PyObject *type = PyType_FromModuleAndSpec(module, spec, base);
    Py_XDECREF(base);
    if (type && PyModule_AddType(module, (PyTypeObject *)type) < 0)
        Py_CLEAR(type);
    return type;
}

static int module_exec(PyObject *module)
{
    struct us_py_state *state = PyModule_GetState(module);
    us_py_life_setup();
    pthread_mutex_init(&state->allocators_lock, NULL);
    if (!import_all(state))
        return -1;
    if (!(state->addresses_type = add_type(module, &us_py_addresses_spec, NULL, NULL)) ||
        !(state->object_type = add_type(module, &us_py_object_spec, "unislab.objects", "Object")) ||
        !(state->sheaf_type = add_type(module, &us_py_sheaf_spec, "unislab.sheaves", "Sheaf")) ||
        !(state->cache_type = add_type(module, &us_py_cache_spec, "unislab.cache", "Cache")) ||
        !(state->allocator_type =
              add_type(module, &us_py_allocator_spec, "unislab.allocator", "Allocator")))
        return -1;
    if (us_py_info_register(module) < 0 || us_py_probe_register(module) < 0)
        return -1;
#ifdef US_PY_HAS_TRACE
    if (us_py_trace_register(module) < 0)
        return -1;
#endif
#ifdef US_PY_HAS_RUN
    if (us_py_run_register(module) < 0)
        return -1;
#endif
    return 0;
}

static int module_traverse(PyObject *module, visitproc visit, void *arg)
{
    struct us_py_state *state = PyModule_GetState(module);
    if (!state)
        return 0;
#define US_ROW(name) Py_VISIT(state->name);
    US_PY_REFERENCES(US_ROW)
#undef US_ROW
    return 0;
}

static int module_clear(PyObject *module)
{
    struct us_py_state *state = PyModule_GetState(module);
    if (!state)
        return 0;
#define US_ROW(name) Py_CLEAR(state->name);
    US_PY_REFERENCES(US_ROW)
#undef US_ROW
    return 0;
}

static void module_free(void *module)
{
    module_clear(module);
}

static PyModuleDef_Slot module_slots[] = {
    {Py_mod_exec, module_exec},
#if PY_VERSION_HEX >= 0x030c0000
    {Py_mod_multiple_interpreters, Py_MOD_PER_INTERPRETER_GIL_SUPPORTED},
#endif
#if PY_VERSION_HEX >= 0x030d0000
    {Py_mod_gil, Py_MOD_GIL_NOT_USED},
#endif
    {0, NULL},
};

struct PyModuleDef us_py_module = {
    PyModuleDef_HEAD_INIT,
    .m_name = US_PY_MODULE,
#ifdef US_MODEL
    .m_doc =
        "The slab allocator core on a scripted machine; its public face is the package unislab.",
#else
    .m_doc = "The slab allocator core on this machine; its public face is the package unislab.",
#endif
    .m_size = sizeof(struct us_py_state),
    .m_slots = module_slots,
    .m_traverse = module_traverse,
    .m_clear = module_clear,
    .m_free = module_free,
};

#ifdef US_MODEL
PyMODINIT_FUNC PyInit__model(void)
#else
PyMODINIT_FUNC PyInit__native(void)
#endif
{
    return PyModuleDef_Init(&us_py_module);
}
