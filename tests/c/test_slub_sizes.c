// machines: model
/* What slub decides about a cache: orders, objects and min_partial of both epochs, rules and limits
 * of its tunables. Orders are those of the published algorithm, worked out by hand in the tables.
 */
#include "fixture_slub.h"

enum { MANY = 64 };
static unsigned of_one_node[MANY];

static struct us_topology cpus(unsigned n)
{
    return (struct us_topology){
        .ncpus = n, .nnodes = 1, .ndomains = 1, .cpu_node = of_one_node, .cpu_domain = of_one_node};
}

struct known {
    size_t size;
    unsigned char order[4]; /* with 1, 4, 16 and 64 CPUs */
    unsigned short objects[4];
    unsigned char old_order; /* 2.6.25 */
    unsigned short old_objects;
};
/* min_objects 8, 16, 24, 32, max_order 3, waste 1/16, 1/8, 1/4; 2.6.25: 4, max_order 1, waste 1/8,
 * 1/4. */
static const struct known table[] = {
    {64, {0, 0, 0, 0}, {64, 64, 64, 64}, 0, 64},  {192, {0, 0, 1, 1}, {21, 21, 42, 42}, 0, 21},
    {256, {0, 0, 1, 1}, {16, 16, 32, 32}, 0, 16}, {512, {0, 1, 2, 2}, {8, 16, 32, 32}, 0, 8},
    {700, {1, 2, 3, 3}, {11, 23, 46, 46}, 1, 11}, {1024, {1, 2, 3, 3}, {8, 16, 32, 32}, 0, 4},
    {1216, {2, 3, 3, 3}, {13, 26, 26, 26}, 1, 6}, {2048, {2, 3, 3, 3}, {8, 16, 16, 16}, 1, 4},
    {4096, {3, 3, 3, 3}, {8, 8, 8, 8}, 1, 2},     {8192, {3, 3, 3, 3}, {4, 4, 4, 4}, 1, 1},
};

static void shows(struct scene *s, unsigned order, unsigned objects)
{
    CHECK_EQ(tunable(s, "order"), order);
    CHECK_EQ(tunable(s, "objs_per_slab"), objects);
    CHECK_EQ(s->c->geometry.order, order);
    CHECK_EQ(s->c->geometry.objects, objects);
}

static void orders_are_the_published_ones(void)
{
    static const unsigned ncpus[] = {1, 4, 16, 64};
    static const char *const epoch[] = {"epoch"}, *const old[] = {"2.6.25"};
    unsigned i, k;

    for (k = 0; k < 4; k++) {
        const struct us_topology t = cpus(ncpus[k]);

        for (i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
            struct scene s = scene_of(&t, table[i].size, false, NULL, NULL, 0);

            shows(&s, table[i].order[k], table[i].objects[k]);
            scene_close(&s);
            s = scene_of(&t, table[i].size, false, epoch, old, 1);
            shows(&s, table[i].old_order, table[i].old_objects);
            CHECK_EQ(tunable(&s, "min_partial"), 5);
            CHECK_EQ(tunable(&s, "remote_node_defrag_ratio"), 10);
            CHECK_EQ(s.c->geometry.min_order, table[i].old_order); /* no order fallback yet */
            scene_close(&s);
        }
    }
}

/* On 8 CPUs fls is 4. A rule gives the geometry of the number that it comes to. */
static void min_objects_takes_numbers_and_rules(void)
{
    static const struct {
        const char *rule, *number;
    } same[] = {{"4*(fls+1)", "20"},
                {"8+(1+fls)*4", "28"},
                {"8+(2+fls)*4", "32"},
                {"2*cpus_per_node", "8"},
                {"0", "20"}};
    static const char *const name[] = {"min_objects"};
    static const size_t sizes[] = {192, 256, 280, 384, 512, 700, 1024, 1088};
    unsigned cpu_node[8] = {0, 0, 0, 0, 1, 1, 1, 1}, i, k;
    const struct us_topology t = {
        .ncpus = 8, .nnodes = 2, .ndomains = 2, .cpu_node = cpu_node, .cpu_domain = cpu_node};

    for (i = 0; i < 5; i++)
        for (k = 0; k < sizeof(sizes) / sizeof(sizes[0]); k++) {
            struct scene rule = scene_of(&t, sizes[k], false, name, &same[i].rule, 1);
            struct scene number = scene_of(&t, sizes[k], false, name, &same[i].number, 1);

            shows(&rule, number.c->geometry.order, number.c->geometry.objects);
            scene_close(&rule);
            scene_close(&number);
        }
}

static void a_rule_reads_back_as_its_text(void)
{
    static const char *const name[] = {"min_objects"}, *const value[] = {"8+(2+fls)*4"};
    const struct us_topology t = cpus(4);
    struct scene s = scene_of(&t, 64, false, name, value, 1);
    const char *text = NULL;
    int64_t number;

    CHECK_EQ(us_tunable_get(s.c, "min_objects", &number, &text, NULL), US_OK);
    CHECK(text && strcmp(text, "8+(2+fls)*4") == 0);
    CHECK_EQ(us_tunable_get(s.c, "epoch", &number, &text, NULL), US_OK);
    CHECK(text && strcmp(text, "2.6.32") == 0);
    scene_close(&s);
}

static void min_partial_follows_the_size(void)
{
    static const struct {
        size_t size;
        int partial;
    } known[] = {{8, 5}, {32, 5}, {64, 6}, {256, 8}, {300, 8}, {512, 9}, {1024, 10}, {8192, 10}};
    const struct us_topology t = cpus(1);
    unsigned i;

    for (i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
        struct scene s = scene_of(&t, known[i].size, false, NULL, NULL, 0);

        CHECK_EQ(tunable(&s, "min_partial"), known[i].partial);
        scene_close(&s);
    }
}

/* The error names what was given and the limits. */
static void refused(struct us_cache *c, const char *name, const char *value, const char *low,
                    const char *high)
{
    struct us_error e = {.status = US_OK};

    CHECK_EQ(us_tunable_set(c, name, value, &e), US_EINVAL);
    CHECK(strstr(e.text, name) && strstr(e.text, value) && strstr(e.text, low) &&
          strstr(e.text, high));
}

static void live_tunables_have_limits(void)
{
    const struct us_topology t = cpus(4);
    struct scene s = scene_of(&t, 256, false, NULL, NULL, 0);
    struct us_error e;

    refused(s.c, "min_partial", "4", "5", "10");
    refused(s.c, "min_partial", "11", "5", "10");
    refused(s.c, "remote_node_defrag_ratio", "101", "0", "100");
    refused(s.c, "order", "4", "0", "3");
    refused(s.c, "prefetch", "2", "0", "1");
    CHECK_EQ(us_tunable_set(s.c, "min_objects", "8", &e), US_EINVAL);
    CHECK_EQ(us_tunable_set(s.c, "epoch", "2.6.25", &e), US_EINVAL);
    CHECK_EQ(us_tunable_set(s.c, "objs_per_slab", "8", &e), US_EINVAL);
    CHECK_EQ(us_tunable_set(s.c, "min_partial", "5", &e), US_OK);
    CHECK_EQ(tunable(&s, "min_partial"), 5);
    scene_close(&s);
}

static void order_is_for_future_slabs(void)
{
    const struct us_topology t = cpus(4);
    struct scene s = scene_of(&t, 256, false, NULL, NULL, 0);
    void *small[16], *large[32];

    take(&s, small, 16);
    CHECK_EQ(us_tunable_set(s.c, "order", "1", NULL), US_OK);
    shows(&s, 1, 32);
    take(&s, large, 32);
    CHECK_EQ(fixture_stat(s.c, "alloc_slab"), 2);
    CHECK_EQ(tunable(&s, "total_objects"), 48);
    give(&s, small, 16);
    give(&s, large, 32);
    scene_close(&s);
}

static void an_order_needs_room_for_one_object(void)
{
    const struct us_topology t = cpus(4);
    struct scene s = scene_of(&t, 5000, false, NULL, NULL, 0);

    refused(s.c, "order", "0", "1", "3");
    CHECK_EQ(us_tunable_set(s.c, "order", "1", NULL), US_OK);
    shows(&s, 1, 1);
    scene_close(&s);
}

static void create_refuses(const char *name, const char *value, const char *also,
                           const char *value2)
{
    const struct us_topology t = cpus(4);
    struct us_allocator *a = fixture_open("slub", &t, 0, false);
    const struct us_cache_options o = {.name = "refused", .size = 256};
    const char *const names[] = {name, also}, *const values[] = {value, value2};
    struct us_error e = {.status = US_OK};

    CHECK(us_cache_create_with(a, &o, names, values, also ? 2 : 1, &e) == NULL);
    CHECK_EQ(e.status, US_EINVAL);
    CHECK(strstr(e.text, name) != NULL);
    fixture_close(a);
}

static void creation_has_limits(void)
{
    create_refuses("max_order", "11", NULL, NULL);
    create_refuses("min_objects", "5*(fls+1)", NULL, NULL);
    create_refuses("epoch", "2.6.24", NULL, NULL);
    create_refuses("order", "4", NULL, NULL);
    create_refuses("min_order", "2", "max_order", "1");
    create_refuses("min_partial", "6", "epoch", "2.6.25"); /* a constant of that epoch */
}

static void orders_at_creation(void)
{
    static const char *const min[] = {"min_order"}, *const order[] = {"order"};
    static const char *const two[] = {"2"};
    const struct us_topology t = cpus(1);
    struct scene s = scene_of(&t, 64, false, min, two, 1);

    shows(&s, 2, 256);
    scene_close(&s);
    s = scene_of(&t, 64, false, order, two, 1);
    shows(&s, 2, 256);
    scene_close(&s);
}

static void prefetch_changes_nothing_but_time(void)
{
    static const char *const name[] = {"prefetch"}, *const on[] = {"1"};
    const struct us_topology t = cpus(1);
    struct scene s = scene_of(&t, 256, false, name, on, 1);
    void *object[40];
    unsigned i;

    CHECK_EQ(tunable(&s, "prefetch"), 1);
    take(&s, object, 40);
    for (i = 0; i < 16; i++)
        CHECK_EQ(object[i], (char *)object[0] + 256 * i);
    MOVED(&s, "alloc_fastpath", 37, "alloc_slowpath", 3, "alloc_slab", 3, "alloc_refill", 2,
          "deactivate_full", 2);
    CHECK_EQ(us_tunable_set(s.c, "prefetch", "0", NULL), US_OK);
    give(&s, object, 40);
    take(&s, object, 40);
    give(&s, object, 40);
    scene_close(&s);
}

/* Debug F stands before the policy's entries, whatever the tunable says. */
static void prefetch_leaves_the_checks_in_place(void)
{
    static const char *const name[] = {"prefetch"}, *const on[] = {"1"};
    const struct us_topology t = cpus(1);
    struct scene s = scene_of(&t, 64, true, name, on, 1);
    void *object = us_cache_alloc(s.c);

    CHECK_EQ(us_tunable_set(s.c, "prefetch", "0", NULL), US_OK);
    us_cache_free(s.c, object);
    us_cache_free(s.c, object);
    CHECK_EQ(us_cache_refused(s.c), 1);
    scene_close(&s);
}

int main(void)
{
    RUN(orders_are_the_published_ones);
    RUN(min_objects_takes_numbers_and_rules);
    RUN(a_rule_reads_back_as_its_text);
    RUN(min_partial_follows_the_size);
    RUN(live_tunables_have_limits);
    RUN(order_is_for_future_slabs);
    RUN(an_order_needs_room_for_one_object);
    RUN(creation_has_limits);
    RUN(orders_at_creation);
    RUN(prefetch_changes_nothing_but_time);
    RUN(prefetch_leaves_the_checks_in_place);
    return check_result();
}
