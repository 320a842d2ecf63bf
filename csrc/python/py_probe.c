/* py_probe.c - probes of this machine, for calibration; a scripted machine says that it has none.
 */
#include "python/py_unislab.h"

#ifdef US_MODEL
static PyObject *probe(PyObject *module, PyObject *args)
{
    (void)module, (void)args;
    PyErr_SetString(PyExc_ValueError, "a scripted machine has its costs: no probe measures it");
    return NULL;
}
#else
#include "machine/native/probe.h"

#include <string.h>

static const char *const names[] = {
#define US_ROW(id, name) name,
    US_PROBES(US_ROW)
#undef US_ROW
};

static PyObject *probe(PyObject *module, PyObject *args)
{
    const char *name;
    struct us_probe_place place;
    Py_ssize_t bytes;
    unsigned what = 0;

    (void)module;
    if (!PyArg_ParseTuple(args, "sIInI:_probe", &name, &place.cpu, &place.other, &bytes,
                          &place.repeat))
        return NULL;
    place.bytes = bytes < 0 ? 0 : (size_t)bytes;
    while (what < US_PROBE_N && strcmp(names[what], name) != 0)
        what++;
    if (what == US_PROBE_N)
        return PyErr_Format(PyExc_ValueError, "no probe is named %R", PyTuple_GET_ITEM(args, 0));

    struct us_error error = {0};
    enum us_status status;
    double ns = 0;

    PyThreadState *thread = PyEval_SaveThread();
    status = us_probe((enum us_probe)what, &place, &ns, &error);
    PyEval_RestoreThread(thread);
    if (status == US_OK)
        return PyFloat_FromDouble(ns);
    PyErr_SetString(status == US_ENOMEM ? PyExc_MemoryError : PyExc_ValueError, error.text);
    return NULL;
}

#endif

static PyMethodDef functions[] = {
    {"_probe", probe, METH_VARARGS,
     "_probe($module, name, cpu, other, bytes, repeat, /)\n--\n\nOne measurement, in ns."},
    {NULL, NULL, 0, NULL},
};

int us_py_probe_register(PyObject *module)
{
    return PyModule_AddFunctions(module, functions);
}
