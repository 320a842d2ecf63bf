// machines: native
/* Threads, a purger and signal handlers at once: no block is handed out twice, nothing is lost. */
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include "fixture_memory.h"
#include "memory/internal.h"

#define NTHREADS 4
#define NBLOCKS  40
#define NSTEPS   10000

static struct us_machine *machine;
static struct us_memory *mem;
static atomic_bool finished;

struct block {
    uint64_t *base;
    unsigned order;
    uint64_t tag;
};

/* First and last word of each page carry the tag of the owner. */
static void sign(const struct block *b)
{
    size_t words = machine->page_size / sizeof(uint64_t);

    for (size_t page = 0; page < (size_t)1 << b->order; page++)
        b->base[page * words] = b->base[(page + 1) * words - 1] = b->tag;
}

static bool is_intact(const struct block *b)
{
    size_t words = machine->page_size / sizeof(uint64_t);

    for (size_t page = 0; page < (size_t)1 << b->order; page++)
        if (b->base[page * words] != b->tag || b->base[(page + 1) * words - 1] != b->tag)
            return false;
    return true;
}

static void *worker(void *context)
{
    static _Atomic uint64_t next_tag = 1;
    struct block block[NBLOCKS] = {{NULL, 0, 0}};
    uint64_t seed = 0x9e3779b97f4a7c15ull * (1 + (uint64_t)(uintptr_t)context);
    struct us_flight f;

    for (unsigned step = 0; step < NSTEPS + NBLOCKS; step++) {
        struct block *b = &block[step < NSTEPS ? next_random(&seed) % NBLOCKS : step - NSTEPS];

        us_flight_enter(machine, &f);
        if (b->base) {
            CHECK(is_intact(b));
            us_pages_free(mem, &f, b->base, b->order);
            b->base = NULL;
        } else if (step < NSTEPS) {
            b->order = (unsigned)__builtin_ctzll(next_random(&seed) | 1u << 6);
            b->base = us_pages_alloc(mem, &f, b->order, (unsigned)(next_random(&seed) & 1), 0);
            b->tag = atomic_fetch_add(&next_tag, 1);
            if (b->base)
                sign(b);
        }
        us_flight_leave(&f);
    }
    return NULL;
}

static void *purger(void *context)
{
    struct us_flight f;

    (void)context;
    for (uint64_t now = 0; !atomic_load(&finished); now += 1000) {
        us_flight_enter(machine, &f);
        us_memory_purge(mem, &f, now, now % 5000 == 0);
        us_flight_leave(&f);
        usleep(200);
    }
    return NULL;
}

static void begin(uint64_t budget)
{
    machine = make_machine(2);
    mem = make_memory(machine, budget);
    atomic_store(&finished, false);
}

static void end(void)
{
    struct us_memory_account account;

    check_memory(mem);
    us_memory_account(mem, &account);
    CHECK_EQ(account.reserved, 0);
    CHECK_EQ(account.metadata, 0);
    for (unsigned node = 0; node < 2; node++)
        CHECK_EQ(free_pages(mem, node) * machine->page_size, account.budget / 2);
    us_memory_destroy(mem);
    us_machine_destroy(machine);
}

static void run_threads(void)
{
    pthread_t thread[NTHREADS], purge;

    REQUIRE(pthread_create(&purge, NULL, purger, NULL) == 0);
    for (uintptr_t i = 0; i < NTHREADS; i++)
        REQUIRE(pthread_create(&thread[i], NULL, worker, (void *)i) == 0);
    for (unsigned i = 0; i < NTHREADS; i++)
        pthread_join(thread[i], NULL);
    atomic_store(&finished, true);
    pthread_join(purge, NULL);
}

static void threads_share_nodes(void)
{
    begin(256 * MIB);
    run_threads();
    end();
}

/* Less than they ask for, so that requests fail and go to the other node. */
static void threads_out_of_memory(void)
{
    begin(4 * MIB);
    run_threads();
    end();
}

/* A handler takes and gives back what it can; what it could not give back is taken in later. */
static void on_signal(int number)
{
    struct us_flight f;

    (void)number;
    us_flight_enter(machine, &f);
    void *block = us_pages_alloc(mem, &f, 1, 0, 0);
    void *meta = us_meta_alloc(mem, 300);
    us_meta_free(mem, meta, 300);
    if (block)
        us_pages_free(mem, &f, block, 1);
    us_flight_leave(&f);
}

static void *signaller(void *context)
{
    while (!atomic_load(&finished)) {
        pthread_kill(*(pthread_t *)context, SIGUSR1);
        usleep(20);
    }
    return NULL;
}

static void signals(void)
{
    struct sigaction action = {.sa_handler = on_signal, .sa_flags = SA_RESTART};
    pthread_t sender, self = pthread_self();

    begin(64 * MIB);
    REQUIRE(sigaction(SIGUSR1, &action, NULL) == 0);
    REQUIRE(pthread_create(&sender, NULL, signaller, &self) == 0);
    for (unsigned i = 0; i < 5; i++)
        worker((void *)(uintptr_t)i);
    for (unsigned i = 0; i < 20000; i++) {
        void *base = us_meta_alloc(mem, 1 + i % 10000);

        CHECK(base != NULL);
        us_meta_free(mem, base, 1 + i % 10000);
    }
    atomic_store(&finished, true);
    pthread_join(sender, NULL);
    signal(SIGUSR1, SIG_IGN);
    us_meta_free(mem, us_meta_alloc(mem, 8), 8); /* takes in what the last handler left */
    end();
}

/* The same at the worst moment: the handler came while its thread held the lock. */
static void handler_inside_the_lock(void)
{
    struct us_flight f, nested;

    begin(64 * MIB);
    us_flight_enter(machine, &f);
    void *a = us_pages_alloc(mem, &f, 2, 0, 0), *b = us_pages_alloc(mem, &f, 0, 0, 0);
    void *meta = us_meta_alloc(mem, 500), *large = us_meta_alloc(mem, 50000);
    REQUIRE(a && b && meta && large);
    REQUIRE(us_lock_take(&f, &mem->node[0].lock));
    us_flight_enter(machine, &nested);
    CHECK(us_pages_alloc(mem, &nested, 0, 0, US_PAGES_THISNODE) == NULL);
    us_pages_free(mem, &nested, a, 2);
    us_pages_free(mem, &nested, b, 0);
    CHECK_EQ(us_memory_purge(mem, &nested, 0, true), 0);
    us_flight_leave(&nested);
    us_lock_drop(&f, &mem->node[0].lock);
    /* The next request finds them. */
    CHECK_EQ(us_pages_alloc(mem, &f, 2, 0, 0), a);
    us_pages_free(mem, &f, a, 2);
    REQUIRE(us_lock_take(&f, &mem->meta.lock));
    us_flight_enter(machine, &nested);
    CHECK(us_meta_alloc(mem, 500) == NULL);
    us_meta_free(mem, meta, 500);
    us_meta_free(mem, large, 50000);
    us_flight_leave(&nested);
    us_lock_drop(&f, &mem->meta.lock);
    unsigned char *again = us_meta_alloc(mem, 500);
    REQUIRE(again != NULL);
    CHECK(again[0] == 0 && again[499] == 0);
    us_meta_free(mem, again, 500);
    us_flight_leave(&f);
    end();
}

int main(void)
{
    RUN(handler_inside_the_lock);
    RUN(threads_share_nodes);
    RUN(threads_out_of_memory);
    RUN(signals);
    return check_result();
}
