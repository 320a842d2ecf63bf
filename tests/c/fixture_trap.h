/*
 * Signals exactly inside a restartable sequence, at one of its places (native/seq_x86.h): the trap
 * that a sequence runs into calls what the test wants done there.  For builds with -DUS_TESTING.
 */
#ifndef FIXTURE_TRAP_H
#define FIXTURE_TRAP_H

#include <signal.h>
#include <string.h>
#include <ucontext.h>

#include "check.h"
#include "machine/native/seq_x86.h"

enum { PLACES = 3, SOME = 3 };

/* Of an operation that moves up to three objects. */
struct outcome {
    unsigned n;
    void *out[SOME];
};

static inline void check_same(struct outcome a, struct outcome b)
{
    CHECK_EQ(a.n, b.n);
    CHECK(memcmp(a.out, b.out, a.n * sizeof *a.out) == 0); /* beyond, aborted copies may lie */
}

static void (*interruption)(void);
static volatile int *armed;
static volatile sig_atomic_t traps, left, not_aborted;

/* The kernel goes on at the abort address, before which the signature stands. */
static inline void on_trap(int signal, siginfo_t *info, void *context)
{
    const ucontext_t *u = context;
    const char *next = (const char *)(uintptr_t)u->uc_mcontext.gregs[REG_RIP];
    uint32_t signature;

    (void)signal;
    (void)info;
    memcpy(&signature, next - 4, sizeof signature);
    not_aborted += signature != 0x53053053;
    traps++;
    if (--left > 0)
        return;
    *armed = 0;
    if (interruption != NULL)
        interruption();
}

static inline void arm(unsigned sequence, unsigned place, int times, void (*what)(void))
{
    interruption = what;
    armed = &us_inject[PLACES * sequence + place];
    left = times;
    traps = 0;
    not_aborted = 0;
    *armed = -1;
}

static inline void check_trapped(int times)
{
    CHECK_EQ(traps, times);
    CHECK_EQ(not_aborted, 0);
    *armed = 0;
}

static inline bool catch_traps(void)
{
    struct sigaction action = {.sa_sigaction = on_trap, .sa_flags = SA_SIGINFO};

    return sigaction(SIGTRAP, &action, NULL) == 0;
}

#endif
