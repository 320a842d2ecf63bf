/* system.h - what the system says of its CPUs, nodes and caches. */
#ifndef US_SYSTEM_H
#define US_SYSTEM_H

#include "machine/machine.h"

/* Highest possible CPU number + 1. */
unsigned us_system_cpus(void);
/* A bound that no CPU id of this kernel reaches, >= us_system_cpus(). */
unsigned us_system_cpu_bound(void);
/* Nodes with CPUs, numbered densely, and last-level caches as domains, of ncpus CPUs. The arrays of
 * the result are allocated: us_system_topology_free. False when memory is short. */
bool us_system_topology(unsigned ncpus, struct us_topology *t);
void us_system_topology_free(struct us_topology *t);

#endif
