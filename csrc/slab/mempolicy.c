/* mempolicy.c - see mempolicy.h. */
#include "slab/mempolicy.h"

#include <stdio.h>
#include <string.h>

static _Thread_local struct us_task_policy task;

static bool node_exists(const struct us_machine *m, unsigned node, struct us_error *error)
{
    const unsigned nodes = m->nnodes < US_TASK_NODES ? m->nnodes : US_TASK_NODES;

    if (node < nodes)
        return true;
    if (error) {
        *error = (struct us_error){.status = US_EINVAL};
        snprintf(error->text, sizeof(error->text), "node %u does not exist: nodes are 0 to %u",
                 node, nodes - 1);
    }
    return false;
}

bool us_task_policy_preferred(struct us_task_policy *p, const struct us_machine *m, unsigned node,
                              struct us_error *error)
{
    if (!node_exists(m, node, error))
        return false;
    *p = (struct us_task_policy){.kind = US_TASK_PREFERRED, .machine = m, .node = node};
    return true;
}

bool us_task_policy_interleave(struct us_task_policy *p, const struct us_machine *m,
                               const unsigned *nodes, size_t n, struct us_error *error)
{
    size_t i;

    if (n == 0) {
        if (error) {
            *error = (struct us_error){.status = US_EINVAL};
            snprintf(error->text, sizeof(error->text), "interleaving needs at least one node");
        }
        return false;
    }
    *p = (struct us_task_policy){.kind = US_TASK_INTERLEAVE, .machine = m, .node = UINT32_MAX};
    for (i = 0; i < n; i++) {
        if (!node_exists(m, nodes[i], error))
            return false;
        p->mask[nodes[i] / 64] |= 1ull << (nodes[i] % 64);
    }
    return true;
}

void us_task_policy_set(const struct us_task_policy *p, struct us_task_policy *old)
{
    struct us_task_policy next = {.kind = US_TASK_LOCAL};

    if (p)
        next = *p;
    if (old)
        *old = task;
    task = next;
}

/* First node of the mask at or above `from`, wrapping around. The mask is not empty. */
static unsigned next_node(const uint64_t *mask, unsigned from)
{
    unsigned word = (from % US_TASK_NODES) / 64;
    uint64_t bits = mask[word] & (~0ull << (from % 64));

    while (bits == 0) {
        word = (word + 1) % (US_TASK_NODES / 64);
        bits = mask[word];
    }
    return word * 64 + (unsigned)__builtin_ctzll(bits);
}

int us_task_node(const struct us_machine *m)
{
    struct us_task_policy *p = &task;

    if (p->kind == US_TASK_LOCAL || p->machine != m)
        return -1;
    if (p->kind == US_TASK_INTERLEAVE)
        p->node = next_node(p->mask, p->node + 1);
    return (int)p->node;
}

bool us_task_interleaves(const struct us_machine *m)
{
    return task.kind == US_TASK_INTERLEAVE && task.machine == m;
}
