/* The binding of the trace reader: types TraceReader and Column. */
#ifndef US_PYTHON_PY_TRACE_H
#define US_PYTHON_PY_TRACE_H

#define PY_SSIZE_T_CLEAN
#include <Python.h>

/* Adds the types and the tables of the reader to the module; -1 with an exception set. */
int us_py_trace_register(PyObject *module);

#endif
