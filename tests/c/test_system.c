/* What /sys says becomes nodes and domains, and memory is bound to the system's own nodes only:
 * with a /sys of the test's making, and the system call that binds recorded. */
// machines: native
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "check.h"
#include "memory/memory.h"

#define SYSTEM "/sys/devices/system/"

static char folder[] = P_tmpdir "/us-test-system-XXXXXX";

/* ---- what stands between the core and the system ----------------------------------------------
 */

FILE *fopen(const char *path, const char *mode)
{
    static FILE *(*real)(const char *, const char *);
    char instead[400];

    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "fopen");
    if (strncmp(path, SYSTEM, strlen(SYSTEM)) != 0)
        return real(path, mode);
    snprintf(instead, sizeof(instead), "%s/%s", folder, path + strlen(SYSTEM));
    return real(instead, mode);
}

static struct {
    uint64_t base, bytes;
    unsigned node;
} bound[8];
static unsigned nbound;

static void record(uint64_t base, uint64_t bytes, const unsigned long *mask)
{
    unsigned node = 0;

    REQUIRE(nbound < 8);
    while (node < 1024 && !(mask[node / 64] >> (node % 64) & 1))
        node++;
    bound[nbound].base = base;
    bound[nbound].bytes = bytes;
    bound[nbound++].node = node;
}

long syscall(long number, ...)
{
    static long (*real)(long, ...);
    long a[6];
    va_list list;

    va_start(list, number);
    for (unsigned i = 0; i < 6; i++)
        a[i] = va_arg(list, long);
    va_end(list);
    if (real == NULL)
        *(void **)&real = dlsym(RTLD_NEXT, "syscall");
#ifdef SYS_mbind
    if (number == SYS_mbind) {
        record((uint64_t)a[0], (uint64_t)a[1], (const unsigned long *)a[3]);
        return 0;
    }
#endif
    return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* ---- a system of the test's making ------------------------------------------------------------
 */

static void make_folders(char *path)
{
    for (char *slash = strchr(path + strlen(folder) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = 0;
        mkdir(path, 0700);
        *slash = '/';
    }
}

static void says(const char *name, const char *text)
{
    char path[400];
    FILE *file;

    snprintf(path, sizeof(path), "%s/%s", folder, name);
    make_folders(path);
    file = fopen(path, "w");
    REQUIRE(file != NULL);
    fputs(text, file);
    fclose(file);
}

static void cache_of(unsigned cpu, unsigned index, const char *level, const char *shared)
{
    char name[100];

    snprintf(name, sizeof(name), "cpu/cpu%u/cache/index%u/level", cpu, index);
    says(name, level);
    snprintf(name, sizeof(name), "cpu/cpu%u/cache/index%u/shared_cpu_list", cpu, index);
    says(name, shared);
}

static void forget(void)
{
    char command[100];

    snprintf(command, sizeof(command), "rm -rf %s/*", folder);
    REQUIRE(system(command) == 0);
    nbound = 0;
}

/* Nodes 0, 2 and 3, the middle one without CPUs; CPUs 2 and 5 are absent; 6 and 7 share a cache of
 * level 3, 4 has one of its own; the rest say nothing of caches. */
static void describe_odd_system(void)
{
    forget();
    says("cpu/possible", "0-7\n");
    says("node/online", "0,2-3\n");
    says("node/node0/cpulist", "0-1,3\n");
    says("node/node2/cpulist", "\n");
    says("node/node3/cpulist", "4,6-7\n");
    for (unsigned cpu = 6; cpu < 8; cpu++) {
        cache_of(cpu, 0, "1\n", cpu == 6 ? "6\n" : "7\n");
        cache_of(cpu, 1, "3\n", "6-7\n");
    }
    cache_of(4, 0, "3\n", "4\n");
}

static struct us_machine *open_machine(const struct us_topology *t)
{
    struct us_error e = {.status = US_OK};
    struct us_machine *m = us_machine_create(t, 0, 1, &e);

    if (m == NULL)
        fprintf(stderr, "%s\n", e.text);
    REQUIRE(m != NULL);
    return m;
}

static void nodes_and_domains_follow_what_sys_says(void)
{
    struct us_machine *m;

    describe_odd_system();
    m = open_machine(NULL);
    CHECK(m->ncpus >= 8);
    CHECK_EQ(m->nnodes, 2); /* those with CPUs, numbered without holes */
    for (unsigned cpu = 0; cpu < 4; cpu++)
        CHECK_EQ(us_node_of_cpu(m, cpu), 0);
    CHECK_EQ(us_node_of_cpu(m, 4), 1);
    CHECK_EQ(us_node_of_cpu(m, 6), 1);
    CHECK_EQ(us_node_of_cpu(m, 7), 1);
    CHECK_EQ(us_domain_of_cpu(m, 0), us_domain_of_cpu(m, 1)); /* single CPUs of a node: one group */
    CHECK_EQ(us_domain_of_cpu(m, 0), us_domain_of_cpu(m, 3));
    CHECK_EQ(us_domain_of_cpu(m, 6), us_domain_of_cpu(m, 7));
    CHECK(us_domain_of_cpu(m, 4) != us_domain_of_cpu(m, 6));
    us_machine_destroy(m);
}

static void without_sys_there_is_one_node(void)
{
    struct us_machine *m;

    forget();
    m = open_machine(NULL);
    CHECK_EQ(m->nnodes, 1);
    CHECK_EQ(m->ndomains, 1);
    CHECK(m->ncpus >= 1);
    us_machine_destroy(m);
}

/* ---- binding ----------------------------------------------------------------------------------
 */

static void check_bound(struct us_machine *m, unsigned n, const unsigned *nodes)
{
    const struct us_memory_options o = {.address_range = 1ull << 30};
    struct us_error e = {.status = US_OK};
    struct us_memory *memory;

    nbound = 0;
    memory = us_memory_create(m, &o, &e);
    REQUIRE(memory != NULL);
    CHECK_EQ(nbound, n);
    for (unsigned i = 0; i < n && i < nbound; i++) {
        CHECK_EQ(bound[i].base, us_node_base(us_memory_range(memory), i));
        CHECK_EQ(bound[i].bytes, us_node_length(us_memory_range(memory)));
        CHECK_EQ(bound[i].node, nodes[i]);
    }
    us_memory_destroy(memory);
}

static void memory_is_bound_to_the_system_s_nodes(void)
{
    static const unsigned nodes[] = {0, 3};
    struct us_machine *m;

    describe_odd_system();
    m = open_machine(NULL);
    check_bound(m, 2, nodes);
    us_machine_destroy(m);
}

/* Nodes that are declared over the CPUs at hand are none of the system's. */
static void memory_of_declared_nodes_is_not_bound(void)
{
    static const unsigned ids[] = {0, 1};
    static const struct us_topology two = {2, 2, 2, ids, ids};
    struct us_machine *m;

    describe_odd_system();
    us_machine_destroy(open_machine(NULL)); /* the system's nodes are known */
    m = open_machine(&two);
    CHECK(!m->system_topology);
    check_bound(m, 0, NULL);
    us_machine_destroy(m);
}

int main(void)
{
    REQUIRE(mkdtemp(folder) != NULL);
    RUN(nodes_and_domains_follow_what_sys_says);
    RUN(without_sys_there_is_one_node);
#ifdef SYS_mbind
    RUN(memory_is_bound_to_the_system_s_nodes);
    RUN(memory_of_declared_nodes_is_not_bound);
#endif
    forget();
    rmdir(folder);
    return check_result();
}
