/* sheaves_rcu.c - sheaves of frees that wait for a grace period.
 *
 * cache/rcu.c fills one a CPU (the original's rcu_free), keeps it until its grace period is over
 * and brings it here. One that was filled goes to the barn of its objects' node, as a full sheaf,
 * if that has room; one that was not, sent off by a flush or by its age, goes past the barn, as a
 * flush sends it in the original, and so does a full one of a node that has no CPU online any more.
 * The objects are counted as freed then, by where they went: to the barn's stock, or to slabs.
 */
#include "policy/sheaves.h"

/* Instructions of the compiled functions, estimated: see sheaves.c. */
enum { RUNS_SHEAF = 40, RUNS_DONE = 50 };

/* The spare if that is empty, an empty one of the barn, a new one. */
struct us_sheaf *us_sheaves_rcu_sheaf(struct us_cache *c, struct us_flight *f)
{
    struct us_sheaf *s = NULL;
    struct us_sheaf_pair p;

    us_runs(RUNS_SHEAF);
    us_reads(us_sheaves_of(c), offsetof(struct us_sheaves, lent_lock));
    if (us_sheaves_of(c)->capacity == 0)
        return NULL;
    if (us_sheaf_pair_take(c, f, &p)) {
        if (p.spare && us_sheaf_size(p.spare) == 0) {
            s = p.spare;
            p.spare = NULL;
        }
        us_sheaf_pair_give(c, f, &p);
    }
    if (!s)
        s = us_barn_get_empty(f, us_barn_of_cpu(c, us_cpu_now(c->machine)));
    if (!s)
        return us_sheaf_new(c);
    us_sheaf_set(s, 0);
    return s;
}

void us_sheaves_rcu_count(struct us_cache *c, unsigned cpu, bool sheaf)
{
    us_count(c, cpu, sheaf ? US_SHEAVES_FREE_RCU_SHEAF : US_SHEAVES_FREE_RCU_SHEAF_FAIL);
}

static bool has_full(struct us_barn *b)
{
    us_reads(b, sizeof(*b));
    return atomic_load_explicit(&b->nr_full, memory_order_relaxed) >= US_BARN_FULL;
}

static void flush(struct us_cache *c, struct us_flight *f, struct us_sheaf *s)
{
    us_count_n(c, us_cpu_now(c->machine), US_SHEAVES_FREE_RCU_FLUSHED, us_sheaf_size(s));
    us_sheaf_flush(c, f, s);
}

static void to_barn(struct us_cache *c, struct us_flight *f, struct us_sheaf *s)
{
    const unsigned cpu = us_cpu_now(c->machine);
    struct us_barn *barn = &us_sheaves_of(c)->barn[us_node_of(&c->slabs->range, s->object[0])];

    us_reads(&s->object[0], sizeof(*s->object));
    if (!has_full(barn)) {
        us_count(c, cpu, US_SHEAVES_BARN_PUT);
        us_count_n(c, cpu, US_SHEAVES_FREE_RCU_BARN, us_sheaf_size(s));
        us_count_n(c, cpu, US_SHEAVES_MOVED, us_sheaf_size(s));
        us_barn_put_full(f, barn, s);
        return;
    }
    us_count(c, cpu, US_SHEAVES_BARN_PUT_FAIL);
    flush(c, f, s);
    if (atomic_load_explicit(&barn->nr_empty, memory_order_relaxed) < US_BARN_EMPTY)
        us_barn_put_empty(f, barn, s);
    else
        us_sheaf_free(c, s);
}

/* A node whose last CPU went offline has nobody who would use its barn. */
static bool has_users(const struct us_cache *c, const struct us_sheaf *s)
{
    return us_node_online(c->machine, us_node_of(&c->slabs->range, s->object[0])) > 0;
}

void us_sheaves_rcu_done(struct us_cache *c, struct us_flight *f, struct us_sheaf *s, bool barn)
{
    us_runs(RUNS_DONE);
    if (barn && has_users(c, s)) {
        to_barn(c, f, s);
        return;
    }
    flush(c, f, s);
    us_sheaf_free(c, s);
}
