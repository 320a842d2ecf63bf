/*
 * What tests of restartable sequences on this machine stand on: a thread that stays on one CPU, and
 * a table whose entries are closed but for that CPU's.
 */
#ifndef FIXTURE_PAIR_H
#define FIXTURE_PAIR_H

#include "machine/local.h"
#include "ring_model.h"

static struct us_machine *machine;
static unsigned cpu; /* where this thread is pinned */
static void **table; /* [-2 .. table_cpus-1] of closed entries, but for the one of `cpu` */

static inline void set_up(void)
{
    struct us_error error = {0};

    machine = us_machine_create(NULL, 0, 1, &error);
    REQUIRE(machine != NULL);
    if (machine->mode != US_MODE_RSEQ)
        SKIP(us_machine_mode_reason());
    cpu = us_cpu_now(machine);
    REQUIRE(us_machine_on_cpu(machine, (int)cpu, &error) == 0);
    table = (void **)calloc(machine->table_cpus + 2, sizeof *table) + 2;
}

static inline void all_closed(void *closed)
{
    for (int i = -2; i < (int)machine->table_cpus; i++)
        table[i] = closed;
}

#endif
