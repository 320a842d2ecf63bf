// machines: model
/* What the core declares to the model (machine.h, charge.h), op by op.
 *
 * Without arguments every policy goes through the paths below, and each op must have declared
 * something. With a policy, a size and a file, what each op declared is written to that, for
 * tests/test_declared.py to hold it against the trace of memory that valgrind made of the same op:
 * it is cut out of the trace by two stores to `marker`, which come right before and after. Nothing
 * is charged then, and numbers are not made text, for every instruction has its line in the trace.
 *
 * The virtual CPU that is charged runs on no coroutine: it is always the earliest, so that it never
 * yields. The file takes the place of machine/model/lines.c, to see what goes there.
 */
#define us_charge_lines        charge_lines_unseen
#define us_charge_instructions charge_instructions_unseen
#include "machine/model/lines.c" // NOLINT(bugprone-suspicious-include)
#undef us_charge_lines
#undef us_charge_instructions

#include "fixture_cache.h"
#include "memory/internal.h"

void us_charge_lines(const void *base, size_t bytes, enum us_access access);
void us_charge_instructions(uint64_t n);

/* ---- what is declared ------------------------------------------------------------------------ */

enum { MOST = 1 << 16 };

/* As the file has it: each op, and behind it what it declared. */
struct op {
    char name[16];
    uint64_t instructions, ndeclared;
};
struct declaration {
    uint64_t base;
    uint32_t bytes, access;
};

static struct declaration declared[MOST];
static struct op op;
static FILE *file;
static bool recording;
static volatile uint32_t marker;

void us_charge_lines(const void *base, size_t bytes, enum us_access access)
{
    if (recording && op.ndeclared < MOST)
        declared[op.ndeclared++] =
            (struct declaration){(uintptr_t)base, bytes ? (uint32_t)bytes : 1, access};
    if (!file)
        charge_lines_unseen(base, bytes, access);
}

void us_charge_instructions(uint64_t n)
{
    op.instructions += recording ? n : 0;
    charge_instructions_unseen(n);
}

static void begin(void)
{
    op = (struct op){.ndeclared = 0};
    recording = true;
    marker = 1;
}

static void end(const char *name)
{
    marker = 0;
    recording = false;
    CHECK(op.ndeclared > 0 && op.ndeclared < MOST && op.instructions > 0);
    if (!file)
        return;
    strcpy(op.name, name);
    fwrite(&op, sizeof(op), 1, file);
    fwrite(declared, sizeof(*declared), op.ndeclared, file);
}

/* ---- the machine ------------------------------------------------------------------------------
 */

static struct us_allocator *open_model(const char *policy)
{
    static struct us_costs costs = {.instruction = 1, .smt_slowdown = 100};
    static struct us_cache_sizes sizes = {.l1 = 32768, .l1_ways = 8, .l2 = 1 << 20, .l2_ways = 16};
    struct us_allocator_options o;
    struct us_error e = {.status = US_OK};
    struct us_allocator *a;

    us_allocator_options_init(&o);
    o.policy = policy;
    o.topology = &fixture_two_nodes;
    o.memory = 32 << 20;
    o.address_range = 1ull << 27;
    o.model_costs = (const uint64_t *)&costs;
    o.model_caches = (const uint64_t *)&sizes;
    o.model_smt = 1;
    a = us_allocator_create(&o, &e);
    if (!a)
        fprintf(stderr, "%s: %s\n", policy, e.text);
    REQUIRE(a && a->machine->sim);
    a->machine->sim->horizon = US_FOREVER;
    return a;
}

static void on_cpu(struct us_allocator *a, unsigned cpu)
{
    a->machine->current_cpu = cpu;
    us_running = &a->machine->sim->vcpu[cpu];
}

static void show(const char *name, const void *base, size_t bytes)
{
    printf("range %s %llx %zx\n", name, (unsigned long long)(uintptr_t)base, bytes);
}

/* Everything that an allocator keeps, but for what the model keeps beside it. */
static void show_ranges(struct us_allocator *a)
{
    const struct us_machine *m = a->machine;
    const struct us_memory *mem = a->memory;

    printf("marker %llx\n", (unsigned long long)(uintptr_t)&marker);
    show("arena", us_page_address(&mem->range, 0), mem->range.length);
    show("metadata", mem->meta.span.base, mem->meta.reserved);
    for (unsigned i = 0; i < atomic_load(&mem->narrays); i++)
        show("page-array", mem->array[i].base, mem->array[i].total);
    show("bitsets", mem->words, mem->words_bytes);
    show("chunks", mem->meta.chunk, mem->meta.chunk_bytes);
    show("nodes", mem->node, m->nnodes * sizeof(*mem->node));
    show("memory", mem, sizeof(*mem));
    show("slabs", &a->slabs, sizeof(a->slabs));
    show("cpus", m->cpu, m->ncpus * sizeof(*m->cpu));
}

/* ---- the paths ------------------------------------------------------------------------------- */

enum { OBJECTS = 160 };

static void *object[OBJECTS];

static void alloc(struct us_cache *c, unsigned from, unsigned to, int node)
{
    for (unsigned i = from; i < to; i++) {
        begin();
        object[i] = node < 0 ? us_cache_alloc(c) : us_cache_alloc_node(c, 0, node);
        end("alloc");
        REQUIRE(object[i]);
    }
}

static void release(struct us_cache *c, unsigned from, unsigned to)
{
    for (unsigned i = from; i < to; i++) {
        begin();
        us_cache_free(c, object[i]);
        end("free");
    }
}

static void walk(const char *policy, size_t size)
{
    struct us_allocator *a = open_model(policy);
    struct us_cache *c = fixture_cache(a, "objects", size, 0);

    if (file)
        show_ranges(a);
    on_cpu(a, 0);
    alloc(c, 0, OBJECTS, US_ANY_NODE);
    on_cpu(a, 1);
    release(c, 0, OBJECTS / 4);
    on_cpu(a, 2);
    release(c, OBJECTS / 4, OBJECTS * 3 / 4);
    on_cpu(a, 0);
    release(c, OBJECTS * 3 / 4, OBJECTS);
    alloc(c, 0, OBJECTS / 2, US_ANY_NODE);
    on_cpu(a, 3);
    alloc(c, OBJECTS / 2, OBJECTS / 2 + 8, 0);
    on_cpu(a, 0);
    begin();
    us_cache_free_bulk(c, OBJECTS / 2 + 8, object);
    end("free_bulk");
    begin();
    REQUIRE(us_cache_alloc_bulk(c, 0, US_ANY_NODE, OBJECTS, object) == OBJECTS);
    end("alloc_bulk");
    release(c, 0, OBJECTS);
    us_running = NULL;
    us_allocator_destroy(a, true, NULL);
}

int main(int argc, char **argv)
{
    if (argc == 4) {
        file = fopen(argv[3], "wb");
        REQUIRE(file);
        walk(argv[1], strtoul(argv[2], NULL, 10));
        fclose(file);
        return check_result();
    }
    FOR_EACH_POLICY(policy)
    walk(policy, 256);
    return check_result();
}
