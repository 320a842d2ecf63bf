/* topology.c - nodes and cache domains of a machine.
 *
 * A cache domain never spans nodes: it is split. The single-CPU domains of one node are joined into
 * one group, for a queue shared by one CPU is none. CPUs beyond the description take node and
 * domain of the CPU they fold on. Domains are then numbered in the order in which CPUs show them,
 * whatever their declared numbers and nodes. Topology in python/unislab/machine.py shows the same.
 */
#include "machine/backend.h"

#include <stdlib.h>

bool us_topology_check(const struct us_topology *t, struct us_error *error)
{
    if (t->ncpus == 0 || t->nnodes == 0 || t->ndomains == 0) {
        us_fail(error, US_EINVAL,
                "a topology of %u CPUs, %u nodes and %u cache domains: each must be at least 1",
                t->ncpus, t->nnodes, t->ndomains);
        return false;
    }
    if (t->ncpus > 65536 || t->nnodes > 1024) {
        us_fail(error, US_EINVAL,
                "a topology of %u CPUs and %u nodes: at most 65536 and 1024 are possible", t->ncpus,
                t->nnodes);
        return false;
    }
    for (unsigned i = 0; i < t->ncpus; i++) {
        if (t->cpu_node[i] >= t->nnodes) {
            us_fail(error, US_EINVAL, "CPU %u is on node %u: nodes are 0 to %u", i, t->cpu_node[i],
                    t->nnodes - 1);
            return false;
        }
        if (t->cpu_domain[i] >= t->ndomains) {
            us_fail(error, US_EINVAL, "CPU %u is in cache domain %u: domains are 0 to %u", i,
                    t->cpu_domain[i], t->ndomains - 1);
            return false;
        }
    }
    return true;
}

/* A CPU on its way to its domain; within a node the key tells domains apart. */
struct place {
    unsigned node, key, cpu;
};

static int in_order(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    if (x->node != y->node)
        return x->node < y->node ? -1 : 1;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->cpu < y->cpu ? -1 : 1;
}

/* Named domains, by the first CPU, which is their name. */
static int by_name(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->cpu < y->cpu ? -1 : 1;
}

static unsigned end_of_domain(const struct place *place, unsigned i, unsigned n)
{
    unsigned end = i + 1;

    while (end < n && place[end].node == place[i].node && place[end].key == place[i].key)
        end++;
    return end;
}

/* Replaces the keys of described CPUs: a domain is named by its first CPU, and all CPUs of a node
 * that are alone in their domain by the first of them. */
static void name_domains(struct place *place, unsigned n, unsigned *first_alone)
{
    qsort(place, n, sizeof *place, in_order);
    for (unsigned i = 0, end; i < n; i = end) {
        unsigned *alone = &first_alone[place[i].node], cpu = place[i].cpu;

        end = end_of_domain(place, i, n);
        if (end == i + 1 && cpu < *alone)
            *alone = cpu;
    }
    for (unsigned i = 0, end; i < n; i = end) {
        unsigned key = place[i].cpu;

        end = end_of_domain(place, i, n);
        if (end == i + 1)
            key = first_alone[place[i].node];
        for (unsigned j = i; j < end; j++)
            place[j].key = key;
    }
}

/* Numbers the domains of all CPUs, once they have their names. */
static void number_domains(struct us_machine *m, struct place *place)
{
    qsort(place, m->ncpus, sizeof *place, by_name);
    for (unsigned i = 0, end; i < m->ncpus; i = end) {
        unsigned d = m->ndomains++;

        end = end_of_domain(place, i, m->ncpus);
        m->domain[d] = (struct us_domain){.node = place[i].node, .ncpus = end - i, .first_cpu = i};
        for (unsigned j = i; j < end; j++) {
            m->domain_cpus[j] = place[j].cpu;
            m->cpu[place[j].cpu].node = place[j].node;
            m->cpu[place[j].cpu].domain = d;
        }
    }
}

static int by_cpu(const void *a, const void *b)
{
    const struct place *x = a, *y = b;

    return x->cpu < y->cpu ? -1 : 1;
}

bool us_topology_apply(struct us_machine *m, const struct us_topology *t)
{
    unsigned described = t->ncpus < m->ncpus ? t->ncpus : m->ncpus;
    struct place *place = calloc(m->ncpus, sizeof *place);
    unsigned *first_alone = malloc(t->nnodes * sizeof *first_alone);

    m->domain = calloc(m->ncpus, sizeof *m->domain);
    m->domain_cpus = calloc(m->ncpus, sizeof *m->domain_cpus);
    m->nnodes = t->nnodes;
    m->ndomains = 0;
    if (place == NULL || first_alone == NULL || m->domain == NULL || m->domain_cpus == NULL) {
        free(place);
        free(first_alone);
        return false;
    }
    for (unsigned i = 0; i < described; i++)
        place[i] = (struct place){.node = t->cpu_node[i], .key = t->cpu_domain[i], .cpu = i};
    for (unsigned i = 0; i < t->nnodes; i++)
        first_alone[i] = m->ncpus;
    name_domains(place, described, first_alone);
    qsort(place, described, sizeof *place, by_cpu);
    for (unsigned i = described; i < m->ncpus; i++) {
        place[i] = place[i % described];
        place[i].cpu = i;
    }
    number_domains(m, place);
    free(place);
    free(first_alone);
    return true;
}
