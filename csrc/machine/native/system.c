/* system.c - CPUs, nodes and last-level caches from /sys, and placement of memory on nodes.
 *
 * Where /sys is absent (some sandboxes), there is one node, and each CPU is alone in its domain. */
#define _GNU_SOURCE
#include "machine/native/system.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#define CPU_DIR   "/sys/devices/system/cpu"
#define NODE_DIR  "/sys/devices/system/node"
#define MAX_CPUS  65536u
#define MAX_NODES 1024u

/* Our dense node numbers, as the system numbers them; for us_os_bind. */
static unsigned system_node[MAX_NODES];
static _Atomic unsigned system_nodes;

static bool read_line(const char *path, char *text, size_t size)
{
    FILE *file = fopen(path, "re");
    bool got;

    if (file == NULL)
        return false;
    got = fgets(text, (int)size, file) != NULL;
    fclose(file);
    return got;
}

/* Calls see() for each number of a list such as "0-3,8"; false when the file is absent. */
static bool for_each_listed(const char *path, void (*see)(void *context, unsigned n), void *context)
{
    static const size_t size = 1 << 16;
    char *text = malloc(size), *p = text;
    bool got = text != NULL && read_line(path, text, size);

    while (got && *p >= '0' && *p <= '9') {
        unsigned long first = strtoul(p, &p, 10), last = first;

        if (*p == '-')
            last = strtoul(p + 1, &p, 10);
        for (unsigned long n = first; n <= last && n < MAX_CPUS; n++)
            see(context, (unsigned)n);
        if (*p == ',')
            p++;
    }
    free(text);
    return got;
}

static void see_highest(void *context, unsigned n)
{
    unsigned *end = context;

    if (n >= *end)
        *end = n + 1;
}

/* Size of the kernel's CPU mask in bits, 0 when it does not say. */
static unsigned mask_bits(unsigned *highest_allowed)
{
    unsigned long mask[MAX_CPUS / 64];
    long bytes = syscall(SYS_sched_getaffinity, 0, sizeof mask, mask);

    *highest_allowed = 0;
    if (bytes <= 0)
        return 0;
    for (unsigned cpu = 0; cpu < (unsigned)bytes * 8; cpu++)
        if (mask[cpu / 64] >> (cpu % 64) & 1)
            *highest_allowed = cpu;
    return (unsigned)bytes * 8;
}

unsigned us_system_cpus(void)
{
    unsigned end = 0, highest;
    long configured = sysconf(_SC_NPROCESSORS_CONF);

    for_each_listed(CPU_DIR "/possible", see_highest, &end);
    (void)mask_bits(&highest);
    if (end == 0 && configured > 0)
        end = (unsigned)configured;
    return end > highest ? end : highest + 1;
}

unsigned us_system_cpu_bound(void)
{
    unsigned highest, bits = mask_bits(&highest), cpus = us_system_cpus();

    if (bits == 0) /* unknown: room for any small kernel */
        bits = 1024;
    return bits > cpus ? bits : cpus;
}

/* ---- nodes and domains ------------------------------------------------------------------------
 */

struct nodes {
    unsigned *cpu_node, ncpus, node; /* node: the one whose CPUs are being listed */
    unsigned found;
};

static void see_node_cpu(void *context, unsigned cpu)
{
    struct nodes *n = context;

    if (cpu >= n->ncpus)
        return;
    n->cpu_node[cpu] = n->node;
    n->found++;
}

/* Nodes that have CPUs get dense numbers, in the system's order. */
static void see_node(void *context, unsigned node)
{
    struct nodes *n = context;
    char path[sizeof NODE_DIR + 32];

    if (n->node == MAX_NODES)
        return;
    snprintf(path, sizeof path, NODE_DIR "/node%u/cpulist", node);
    n->found = 0;
    for_each_listed(path, see_node_cpu, n);
    if (n->found > 0)
        system_node[n->node++] = node;
}

static void see_first(void *context, unsigned cpu)
{
    unsigned *first = context;

    if (cpu < *first)
        *first = cpu;
}

/* The domain of a CPU is named by the first CPU that shares its last-level cache. */
static unsigned domain_of(unsigned cpu)
{
    unsigned best_level = 0, domain = cpu;
    char path[sizeof CPU_DIR + 64], text[64];

    for (unsigned i = 0; i < 16; i++) {
        unsigned long level;

        snprintf(path, sizeof path, CPU_DIR "/cpu%u/cache/index%u/level", cpu, i);
        if (!read_line(path, text, sizeof text))
            break;
        level = strtoul(text, NULL, 10);
        if (level <= best_level)
            continue;
        best_level = (unsigned)level;
        domain = cpu;
        snprintf(path, sizeof path, CPU_DIR "/cpu%u/cache/index%u/shared_cpu_list", cpu, i);
        for_each_listed(path, see_first, &domain);
    }
    return domain;
}

bool us_system_topology(unsigned ncpus, struct us_topology *t)
{
    unsigned *node = calloc(ncpus, sizeof *node), *domain = calloc(ncpus, sizeof *domain);
    struct nodes nodes = {.cpu_node = node, .ncpus = ncpus};

    if (node == NULL || domain == NULL) {
        free(node);
        free(domain);
        return false;
    }
    for_each_listed(NODE_DIR "/online", see_node, &nodes);
    for (unsigned cpu = 0; cpu < ncpus; cpu++)
        domain[cpu] = domain_of(cpu);
    atomic_store(&system_nodes, nodes.node);
    *t = (struct us_topology){.ncpus = ncpus,
                              .nnodes = nodes.node > 0 ? nodes.node : 1,
                              .ndomains = ncpus,
                              .cpu_node = node,
                              .cpu_domain = domain};
    return true;
}

void us_system_topology_free(struct us_topology *t)
{
    free((void *)(uintptr_t)t->cpu_node);
    free((void *)(uintptr_t)t->cpu_domain);
}

void us_os_bind(void *base, size_t bytes, unsigned node)
{
#ifdef SYS_mbind
    enum { PREFERRED = 1 };
    unsigned long mask[MAX_NODES / 64] = {0};

    if (atomic_load(&system_nodes) < 2 || node >= atomic_load(&system_nodes))
        return;
    mask[system_node[node] / 64] = 1ul << (system_node[node] % 64);
    (void)syscall(SYS_mbind, base, bytes, PREFERRED, mask, MAX_NODES + 1, 0);
#else
    (void)base;
    (void)bytes;
    (void)node;
#endif
}
