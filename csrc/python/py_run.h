/* The binding of op programs and their executor: type Runner, check_program, compile_events. */
#ifndef US_PYTHON_PY_RUN_H
#define US_PYTHON_PY_RUN_H

#include "python/py_unislab.h"

#include "work/exec.h"

/* A struct us_program made from Python arguments, and what keeps its pointers valid. */
struct us_py_program {
    struct us_program c;
    struct us_program_cache *cache;
    uint32_t *channel;
    struct us_program_task *task;
    unsigned **cpus;   /* [ntasks] */
    Py_buffer *buffer; /* [ntasks] */
    PyObject *keep[3]; /* the fast sequences */
};

/* caches: (name or None, size, align); channels: capacities; tasks: (ops as a buffer, CPU numbers,
 * us_task_flags). false with an exception. To be released either way. */
bool us_py_program_parse(struct us_py_program *p, PyObject *caches, PyObject *channels,
                         PyObject *tasks);
void us_py_program_release(struct us_py_program *p);

/* Adds everything to the module; -1 with an exception set. */
int us_py_run_register(PyObject *module);

#endif
