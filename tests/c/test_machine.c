/* The machine itself: nodes and domains, the current CPU, clock, chance, memory of the system. */
// needs: machine
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "check.h"
#include "machine/local.h"

/* CPU i is on node nodes[i] and in domain domains[i] ('0' to '9'). */
static struct us_machine *machine_from(const char *nodes, const char *domains,
                                       struct us_error *error)
{
    unsigned cpu_node[32], cpu_domain[32], n = (unsigned)strlen(nodes);
    struct us_topology t = {n, 0, 0, cpu_node, cpu_domain};

    REQUIRE(n <= 32 && strlen(domains) == n);
    for (unsigned i = 0; i < n; i++) {
        cpu_node[i] = (unsigned)(nodes[i] - '0');
        cpu_domain[i] = (unsigned)(domains[i] - '0');
        t.nnodes = cpu_node[i] >= t.nnodes ? cpu_node[i] + 1 : t.nnodes;
        t.ndomains = cpu_domain[i] >= t.ndomains ? cpu_domain[i] + 1 : t.ndomains;
    }
    return us_machine_create(&t, 0, 1, error);
}

/* What holds on any machine: a domain has CPUs of one node, one domain at most of a node has one
 * CPU alone, and numbers come up in order. */
static void check_rules(const struct us_machine *m)
{
    for (unsigned i = 0, next = 0; i < m->ncpus; i++) {
        unsigned d = us_domain_of_cpu(m, i);

        CHECK(d <= next);
        next += d == next;
        CHECK_EQ(m->domain[d].node, us_node_of_cpu(m, i));
    }
    for (unsigned d = 0; d < m->ndomains; d++)
        for (unsigned e = 0; e < d && m->domain[d].ncpus == 1; e++)
            CHECK(m->domain[e].ncpus > 1 || m->domain[e].node != m->domain[d].node);
}

/* Every CPU of the description is where it was put; every domain lists exactly its CPUs, of its
 * node. */
static void check_domains(const char *nodes, const char *domains, const char *expected)
{
    struct us_error error = {0};
    struct us_machine *m = machine_from(nodes, domains, &error);
    unsigned described = (unsigned)strlen(nodes), listed = 0;

    REQUIRE(m != NULL);
    CHECK(m->ncpus >= described);
    for (unsigned i = 0; i < described; i++) {
        CHECK_EQ(us_node_of_cpu(m, i), nodes[i] - '0');
        CHECK_EQ(us_domain_of_cpu(m, i), expected[i] - '0');
    }
    for (unsigned i = described; i < m->ncpus; i++) /* the system has more */
        CHECK_EQ(us_domain_of_cpu(m, i), us_domain_of_cpu(m, i % described));
    for (unsigned d = 0; d < m->ndomains; d++)
        for (unsigned i = 0; i < m->domain[d].ncpus; i++, listed++) {
            unsigned cpu = us_domain_cpu(m, d, i);

            CHECK_EQ(us_domain_of_cpu(m, cpu), d);
            CHECK_EQ(us_node_of_cpu(m, cpu), m->domain[d].node);
            CHECK(i == 0 || cpu > us_domain_cpu(m, d, i - 1));
        }
    CHECK_EQ(listed, m->ncpus);
    check_rules(m);
    us_machine_destroy(m);
}

static void domains_are_split_joined_and_numbered(void)
{
    check_domains("0000", "0011", "0011"); /* as declared */
    check_domains("0011", "1100", "0011"); /* numbered as CPUs first show them */
    check_domains("1100", "1100", "0011"); /* and not by node */
    check_domains("0011001100110011", "0011223300112233", "0011223300112233");
    check_domains("0011", "0000", "0011"); /* never across nodes: split */
    check_domains("00110011", "00001111", "00112233");
    check_domains("0000", "0123", "0000"); /* each alone: one group */
    check_domains("000000", "001234", "001111");
    check_domains("000000", "123344", "001122");
    check_domains("0101", "0123", "0101"); /* a group for each node */
    check_domains("010101", "000000", "010101");
    check_domains("01", "01", "01");
    check_domains("10", "00", "01");
    check_domains("0011", "0110", "0011"); /* what a split leaves alone is grouped */
}

static void a_wrong_topology_is_refused_with_its_reason(void)
{
    unsigned cpu_node[2] = {0, 2}, cpu_domain[2] = {0, 5};
    struct us_topology t = {2, 2, 6, cpu_node, cpu_domain};
    struct us_error error = {0};

    CHECK_EQ(us_machine_create(&t, 0, 1, &error), NULL);
    CHECK_EQ(error.status, US_EINVAL);
    CHECK(strstr(error.text, "CPU 1 is on node 2") != NULL);
    cpu_node[1] = 1;
    t.ndomains = 2;
    CHECK_EQ(us_machine_create(&t, 0, 1, &error), NULL);
    CHECK(strstr(error.text, "domain 5") != NULL);
    t.ncpus = 0;
    CHECK_EQ(us_machine_create(&t, 0, 1, &error), NULL);
    CHECK_EQ(us_machine_create(&t, 0, 1, NULL), NULL);
}

static void the_machine_as_it_is(void)
{
    struct us_error error = {0};
    struct us_machine *m = us_machine_create(NULL, 0, 1, &error);

    REQUIRE(m != NULL);
    CHECK(m->ncpus >= 1 && m->nnodes >= 1 && m->ndomains >= m->nnodes);
    CHECK(m->table_cpus >= m->ncpus);
    CHECK_EQ(m->page_size, 1ull << m->page_shift);
    CHECK(us_cpu_now(m) < m->ncpus);
    check_rules(m);
#ifndef US_MODEL
    CHECK(m->ncpus >= (unsigned)sysconf(_SC_NPROCESSORS_ONLN));
    CHECK_EQ(m->page_size, (unsigned long)sysconf(_SC_PAGESIZE));
    CHECK(m->system_topology);
    for (unsigned i = 0; i < m->ncpus; i++)
        CHECK(us_node_of_cpu(m, i) < m->nnodes);
#endif
    us_machine_destroy(m);
}

/* ---- the current CPU --------------------------------------------------------------------------
 */

static void a_script_goes_where_it_is_told(void)
{
    struct us_error error = {0};
    struct us_machine *m = machine_from("01", "01", &error);
    unsigned reached = 0;

    REQUIRE(m != NULL);
    for (unsigned i = 0; i < 2; i++) {
        if (us_machine_on_cpu(m, (int)i, &error) < 0)
            continue; /* this system has no such CPU */
        CHECK_EQ(us_cpu_now(m), i);
        reached++;
    }
    CHECK(reached > 0);
    CHECK_EQ(us_machine_on_cpu(m, (int)m->ncpus, &error), -1);
    CHECK_EQ(error.status, US_EINVAL);
    CHECK(strstr(error.text, "this machine has CPUs 0 to") != NULL);
    CHECK(us_machine_on_cpu(m, -1, &error) >= 0);
#ifndef US_MODEL
    while (reached-- > 1) /* each is undone on its own */
        CHECK_EQ(us_machine_on_cpu(m, -1, &error), 0);
    CHECK_EQ(us_machine_on_cpu(m, -1, &error), -1);
    CHECK(strstr(error.text, "not pinned") != NULL);
#endif
    us_machine_destroy(m);
}

#ifndef US_MODEL
static void a_cpu_that_the_system_lacks_is_refused(void)
{
    unsigned place[2000] = {0};
    struct us_topology t = {2000, 1, 1, place, place};
    struct us_error error = {0};
    struct us_machine *m = us_machine_create(&t, 0, 1, &error);

    REQUIRE(m != NULL);
    CHECK(m->ncpus >= 2000 && m->table_cpus >= m->ncpus);
    CHECK_EQ(us_machine_on_cpu(m, 1999, &error), -1);
    CHECK(strstr(error.text, "cannot run on CPU 1999") != NULL);
    us_machine_destroy(m);
}

static void the_mode_follows_the_environment(void)
{
    const char *before = getenv("UNISLAB_RSEQ");
    char *kept = before ? strdup(before) : NULL;
    struct us_error error = {0};
    struct us_machine *m;

    setenv("UNISLAB_RSEQ", "0", 1);
    m = us_machine_create(NULL, 0, 1, &error);
    REQUIRE(m != NULL);
    CHECK_EQ(m->mode, US_MODE_SLOT);
    CHECK(strcmp(us_machine_mode_reason(), "fallback: UNISLAB_RSEQ=0") == 0);
    us_machine_destroy(m);
    setenv("UNISLAB_RSEQ", "1", 1);
    m = us_machine_create(NULL, 0, 1, &error);
    REQUIRE(m != NULL);
    CHECK_EQ(m->mode == US_MODE_RSEQ, strcmp(us_machine_mode_reason(), "rseq") == 0);
    us_machine_destroy(m);
    setenv("UNISLAB_RSEQ", "yes", 1);
    CHECK_EQ(us_machine_create(NULL, 0, 1, &error), NULL);
    CHECK_EQ(error.status, US_EINVAL);
    CHECK(strstr(error.text, "\"yes\"") != NULL);
    unsetenv("UNISLAB_RSEQ");
    if (kept)
        setenv("UNISLAB_RSEQ", kept, 1);
    free(kept);
}
#else
static void the_model_checks_its_page_size(void)
{
    struct us_error error = {0};
    struct us_machine *m = us_machine_create(NULL, 65536, 1, &error);

    REQUIRE(m != NULL);
    CHECK_EQ(m->page_size, 65536);
    CHECK_EQ(m->ncpus, 1);
    us_machine_destroy(m);
    CHECK_EQ(us_machine_create(NULL, 5000, 1, &error), NULL);
    CHECK(strstr(error.text, "5000") != NULL);
}
#endif

/* ---- clock, chance ----------------------------------------------------------------------------
 */

static void the_clock_goes_forward_and_can_be_set(void)
{
    struct us_machine *m = us_machine_create(NULL, 0, 1, NULL);
    uint64_t before;

    REQUIRE(m != NULL);
    before = us_now(m);
    us_clock_advance(m, 1000000000);
    CHECK(us_now(m) - before >= 1000000000);
    us_clock_set(m, 42);
    CHECK_EQ(us_now(m), 42);
    us_clock_advance(m, 8);
    CHECK_EQ(us_now(m), 50);
    before = us_clock_real();
    CHECK(us_clock_real() >= before);
    us_machine_destroy(m);
}

static void a_seed_gives_its_sequence(void)
{
    struct us_machine *a = us_machine_create(NULL, 0, 7, NULL);
    struct us_machine *b = us_machine_create(NULL, 0, 7, NULL);
    struct us_machine *c = us_machine_create(NULL, 0, 8, NULL);
    unsigned same = 0, set = 0;

    REQUIRE(a != NULL && b != NULL && c != NULL);
    for (int i = 0; i < 1000; i++) {
        uint64_t x = us_random(a);

        CHECK_EQ(x, us_random(b));
        same += x == us_random(c);
        set += (unsigned)__builtin_popcountll(x);
    }
    CHECK_EQ(same, 0);
    CHECK(set > 31000 && set < 33000); /* half of 64000 bits, +- 8 standard deviations */
    us_machine_destroy(c);
    us_machine_destroy(b);
    us_machine_destroy(a);
}

/* ---- memory of the system ---------------------------------------------------------------------
 */

static void memory_is_reserved_committed_and_purged(void)
{
    const size_t bytes = 1 << 20;
    char *base = us_os_reserve(bytes, false, true), *open;

    REQUIRE(base != NULL);
    REQUIRE(us_os_commit(base, bytes / 2));
    base[0] = base[bytes / 2 - 1] = 'x';
    us_os_purge(base, bytes / 2);
    CHECK_EQ(base[0], 0);
    CHECK_EQ(base[bytes / 2 - 1], 0);
    us_os_release(base, bytes);
    open = us_os_reserve(bytes, true, false);
    REQUIRE(open != NULL);
    CHECK_EQ(open[bytes - 1], 0);
    open[bytes - 1] = 'x';
    us_os_release(open, bytes);
    CHECK_EQ(us_os_reserve((size_t)1 << 60, false, true), NULL);
    us_os_release(NULL, 0);
}

int main(void)
{
    RUN(domains_are_split_joined_and_numbered);
    RUN(a_wrong_topology_is_refused_with_its_reason);
    RUN(the_machine_as_it_is);
    RUN(a_script_goes_where_it_is_told);
#ifndef US_MODEL
    RUN(a_cpu_that_the_system_lacks_is_refused);
    RUN(the_mode_follows_the_environment);
#else
    RUN(the_model_checks_its_page_size);
#endif
    RUN(the_clock_goes_forward_and_can_be_set);
    RUN(a_seed_gives_its_sequence);
    RUN(memory_is_reserved_committed_and_purged);
    return check_result();
}
