/* py_life.c - entering, leaving and ending: nothing is destroyed under a call that works on it.
 *
 * In the child of a fork the other threads' calls never leave. What they had pinned is forgotten
 * when the child first uses the thing; what they were ending counts as ended.
 */
#include "python/py_unislab.h"

#include <pthread.h>
#include <time.h>

_Thread_local unsigned us_py_constructing;
static _Thread_local struct us_py_call *innermost; /* of the calls under way on this thread */

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
        atomic_store(&life->ender, 0);
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

static uintptr_t this_thread(void)
{
    return (uintptr_t)pthread_self();
}

/* Whether waiting for the end that is under way would be for ever; then with an exception. */
static bool cannot_wait(const struct us_py_life *life)
{
    if (atomic_load(&life->ender) == this_thread()) {
        PyErr_SetString(PyExc_RuntimeError,
                        "this thread is closing the allocator or destroying the cache that is used "
                        "here, in a finalizer or weak reference's callback");
        return true;
    }
    if (us_py_constructing) { /* the other thread may be waiting for this very call */
        PyErr_SetString(PyExc_RuntimeError,
                        "another thread is closing the allocator or destroying the cache that a "
                        "constructor wants to use");
        return true;
    }
    return false;
}

/* Pins; false with an exception when it has ended. */
static bool enter(struct us_py_call *call, struct us_py_life *life,
                  const struct us_py_allocator *owner, const char *what)
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
        if (cannot_wait(life))
            return false;
        give_way();
    }
    call->life = life;
    call->owner = owner;
    call->outer = innermost;
    call->forks = atomic_load(&life->forks);
    call->saved = NULL;
    innermost = call;
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
    if (!enter(call, &self->life, self, "this allocator is closed"))
        return NULL;
    begin_section(call, (PyObject *)self);
    return self->core;
}

struct us_cache *us_py_enter_cache(struct us_py_call *call, struct us_py_cache *self)
{
    if (!enter(call, &self->life, self->allocator,
               "this cache was destroyed, or its allocator closed"))
        return NULL;
    begin_section(call, (PyObject *)self->allocator);
    return self->core;
}

void us_py_leave(struct us_py_call *call)
{
#if defined(US_MODEL) && defined(Py_GIL_DISABLED)
    PyCriticalSection_End(&call->section);
#endif
    innermost = call->outer;
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

/* ---- ending ---------------------------------------------------------------------------------- */

#define SIGNALS_EVERY 200 /* moments: 10 ms */

static bool claim(struct us_py_life *life)
{
    int nobody = 0;
    if (!atomic_compare_exchange_strong(&life->ending, &nobody, 1))
        return false;
    atomic_store(&life->ender, this_thread());
    return true;
}

static void give_up(struct us_py_life *life)
{
    atomic_store(&life->ender, 0);
    atomic_store(&life->ending, 0);
}

static bool used_by_this_thread(const struct us_py_life *life, const struct us_py_allocator *whole)
{
    for (const struct us_py_call *c = innermost; c; c = c->outer)
        if (c->life == life || (whole && c->owner == whole))
            return true;
    return false;
}

/* Whether this thread may end it here; else with an exception. */
static bool may_end(const struct us_py_life *life, const struct us_py_allocator *whole,
                    const char *what)
{
    const char *wrong = NULL;
    if (us_py_constructing)
        wrong = "a constructor cannot %s: an allocation is under way";
    else if (used_by_this_thread(life, whole))
        wrong = "cannot %s here: this is a signal handler or finalizer that interrupted a call on "
                "it; do it when that call has returned";
    else if (atomic_load(&life->ending) && atomic_load(&life->ender) == this_thread())
        wrong = "cannot %s here: this thread is doing so already";
    if (wrong)
        PyErr_Format(PyExc_RuntimeError, wrong, what);
    return !wrong;
}

/* Nobody is inside any more, and it is ours; signal handlers run meanwhile, and may use it. */
static bool wait_alone(struct us_py_life *life)
{
    bool ours = false;
    for (unsigned moment = 1;; moment++) {
        ours = ours || claim(life);
        if (ours && (atomic_load(&life->ended) || atomic_load(&life->pins) == 0))
            return true;
        if (moment % SIGNALS_EVERY == 0) {
            if (ours)
                give_up(life);
            ours = false;
            if (PyErr_CheckSignals() < 0)
                return false;
        }
        give_way();
    }
}

bool us_py_end_begin(struct us_py_life *life, const struct us_py_allocator *whole, const char *what)
{
    renew(life);
    if (!may_end(life, whole, what) || !wait_alone(life))
        return false;
    if (!atomic_load(&life->ended))
        return true;
    give_up(life);
    return false;
}

void us_py_end_begin_within(struct us_py_life *life)
{
    renew(life);
    while (!claim(life))
        give_way();
    while (atomic_load(&life->pins) > 0)
        give_way();
}

void us_py_end_settle(struct us_py_life *life, bool ended)
{
    if (ended)
        atomic_store(&life->ended, 1);
    give_up(life);
}
