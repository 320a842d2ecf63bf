/* py_life.c - entering, leaving and ending: nothing is destroyed under a call that works on it.
 *
 * In the child of a fork the other threads' calls never leave. What they had pinned is forgotten
 * when the child first uses the thing; what they were ending counts as ended.
 */
#include "python/py_unislab.h"

#include <pthread.h>
#include <time.h>

_Thread_local unsigned us_py_constructing;

static _Atomic unsigned forks; /* between the first process and this one */
static pthread_mutex_t renewing = PTHREAD_MUTEX_INITIALIZER;

static void count_fork(void)
{
    atomic_fetch_add(&forks, 1);
    pthread_mutex_init(&renewing, NULL);
}

static void watch_forks(void)
{
    pthread_atfork(NULL, NULL, count_fork);
}

void us_py_life_setup(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, watch_forks);
}

static US_NOINLINE void forget_others(struct us_py_life *life)
{
    pthread_mutex_lock(&renewing);
    if (atomic_load(&life->forks) != atomic_load(&forks)) {
        if (atomic_exchange(&life->ending, 0))
            atomic_store(&life->ended, 1);
        atomic_store(&life->pins, 0);
        atomic_store(&life->forks, atomic_load(&forks));
    }
    pthread_mutex_unlock(&renewing);
}

/* To be called before anything is pinned or ended. */
static void renew(struct us_py_life *life)
{
    if (US_UNLIKELY(atomic_load(&life->forks) != atomic_load(&forks)))
        forget_others(life);
}

/* Lets other threads run for a moment: those inside, or the one that ends. */
static void give_way(void)
{
    PyThreadState *saved = PyEval_SaveThread();
    nanosleep(&(struct timespec){.tv_nsec = 50 * 1000}, NULL);
    PyEval_RestoreThread(saved);
}

/* Pins; false with an exception when it has ended. */
static bool enter(struct us_py_call *call, struct us_py_life *life, const char *what)
{
    renew(life);
    for (;;) {
        atomic_fetch_add(&life->pins, 1);
        if (!atomic_load(&life->ending)) {
            if (!atomic_load(&life->ended))
                break;
            atomic_fetch_sub(&life->pins, 1);
            PyErr_Format(PyExc_RuntimeError, "%s; make a new one", what);
            return false;
        }
        atomic_fetch_sub(&life->pins, 1);
        if (us_py_constructing) { /* the other thread may be waiting for this very call */
            PyErr_SetString(
                PyExc_RuntimeError,
                "another thread is closing the allocator or destroying the cache that a "
                "constructor wants to use");
            return false;
        }
        give_way();
    }
    call->life = life;
    call->forks = atomic_load(&life->forks);
    call->saved = NULL;
    return true;
}

static void begin_section(struct us_py_call *call, PyObject *allocator)
{
#if defined(US_MODEL) && defined(Py_GIL_DISABLED)
    PyCriticalSection_Begin(&call->section, allocator);
#else
    (void)call, (void)allocator;
#endif
}

struct us_allocator *us_py_enter_allocator(struct us_py_call *call, struct us_py_allocator *self)
{
    if (!enter(call, &self->life, "this allocator is closed"))
        return NULL;
    begin_section(call, (PyObject *)self);
    return self->core;
}

struct us_cache *us_py_enter_cache(struct us_py_call *call, struct us_py_cache *self)
{
    if (!enter(call, &self->life, "this cache was destroyed, or its allocator closed"))
        return NULL;
    begin_section(call, (PyObject *)self->allocator);
    return self->core;
}

void us_py_leave(struct us_py_call *call)
{
#if defined(US_MODEL) && defined(Py_GIL_DISABLED)
    PyCriticalSection_End(&call->section);
#endif
    if (call->forks == atomic_load(&call->life->forks)) /* else it was forgotten */
        atomic_fetch_sub(&call->life->pins, 1);
}

void us_py_release(struct us_py_call *call)
{
#ifdef US_MODEL
    (void)call;
#else
    call->saved = PyEval_SaveThread();
#endif
}

void us_py_acquire(struct us_py_call *call)
{
#ifdef US_MODEL
    (void)call;
#else
    PyEval_RestoreThread(call->saved);
#endif
}

bool us_py_end_begin(struct us_py_life *life, const char *what)
{
    if (us_py_constructing) {
        PyErr_Format(PyExc_RuntimeError, "a constructor cannot %s: an allocation is under way",
                     what);
        return false;
    }
    renew(life);
    int nobody = 0;
    while (!atomic_compare_exchange_strong(&life->ending, &nobody, 1)) {
        give_way();
        nobody = 0;
    }
    if (atomic_load(&life->ended)) {
        atomic_store(&life->ending, 0);
        return false;
    }
    while (atomic_load(&life->pins) > 0)
        give_way();
    return true;
}

void us_py_end_settle(struct us_py_life *life, bool ended)
{
    if (ended)
        atomic_store(&life->ended, 1);
    atomic_store(&life->ending, 0);
}
