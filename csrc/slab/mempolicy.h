/* mempolicy.h - where the calling task wants its objects: the memory policy of a thread.
 *
 * Caches with US_MEM_SPREAD place each object by it, unless the caller names a node: on the
 * preferred node, or on the next node of an interleave rotor. A policy belongs to one thread and
 * one machine; it is thread-local storage that only slow paths and such caches read.
 */
#ifndef US_MEMPOLICY_H
#define US_MEMPOLICY_H

#include "machine/machine.h"

#define US_TASK_NODES 1024

enum us_task_policy_kind { US_TASK_LOCAL = 0, US_TASK_PREFERRED, US_TASK_INTERLEAVE };

struct us_task_policy {
    enum us_task_policy_kind kind;
    const struct us_machine *machine;  /* the policy is void on others */
    unsigned node;                     /* preferred, or the last one of the rotor */
    uint64_t mask[US_TASK_NODES / 64]; /* interleave: nodes that take part */
};

/* Builds a policy; false (and an error) when a node does not exist. */
bool us_task_policy_preferred(struct us_task_policy *p, const struct us_machine *m, unsigned node,
                              struct us_error *error);
/* The first object goes to the lowest node. */
bool us_task_policy_interleave(struct us_task_policy *p, const struct us_machine *m,
                               const unsigned *nodes, size_t n, struct us_error *error);
/* Makes it the calling thread's (NULL = none); what was in force goes to *old unless that is NULL.
 */
void us_task_policy_set(const struct us_task_policy *p, struct us_task_policy *old);
/* The node of the next object by the calling thread's policy; -1 = it has none. */
int us_task_node(const struct us_machine *m);
/* True when successive objects go to different nodes. */
bool us_task_interleaves(const struct us_machine *m);

#endif
