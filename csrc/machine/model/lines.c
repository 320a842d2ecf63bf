/* lines.c - what an access costs: the directory of lines, the caches, the charges.
 *
 * A line is known by a number: its offset in the range of mapped memory it lies in, or, outside of
 * all, its turn of being met. The directory has for each line a version, counted up when a core
 * writes that has it not to itself; its last writer; whether others have read it since, and how far
 * away the farthest of them is; its home node; and the last two domains that took it in, each with
 * the position it got in that domain's last level.
 *
 * Who finds a tag of the present version in L1 pays nothing beyond the instruction; in L2, or from
 * wherever else the line comes, the latency of that place. A write to a line of its own costs no
 * more; to one that others have read, the invalidation of the farthest; to one it has not, the
 * latency of getting it, which takes it from the others as well.
 */
#define _GNU_SOURCE
#include "machine/model/sim.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

enum { LINE_SHIFT = 6, LEAF_SHIFT = 10, LEAF_LINES = 1 << LEAF_SHIFT, MAX_RANGES = 32 };
#define NLEAVES   (1u << (32 - LEAF_SHIFT))
#define NO_DOMAIN UINT16_MAX
#define NO_OWNER  UINT16_MAX

enum { SHARED_DOMAIN = 1, SHARED_NODE, SHARED_FAR, SHARED = 3, DIRTY = 4 };

struct line {
    uint32_t version; /* 0: never met */
    uint16_t owner;   /* core that wrote it last */
    uint16_t home;    /* node of its memory */
    uint16_t domain[2];
    uint32_t position[2];
    uint8_t flags;
};

struct range {
    uint64_t base, length;
    uint32_t first;      /* line */
    unsigned node_shift; /* address to node; 0 = of no node */
};

struct us_directory {
    struct us_sim *sim;
    struct line **leaf; /* [NLEAVES] */
    struct range range[MAX_RANGES];
    unsigned nranges;
    uint64_t next; /* line of the next range */
    /* lines outside of all ranges, by address */
    uint64_t *other;
    uint32_t *other_line;
    uint32_t nother, other_room;
    uint32_t other_next;
    /* geometry */
    uint32_t l1_mask, l2_mask, l1_ways, l2_ways;
    uint32_t llc_lines;
    uint32_t *llc_next; /* [ndomains] position of the next line taken in */
    char *tags;         /* of all cores */
    size_t tag_bytes;
};

/* ---- life --------------------------------------------------------------------------------------
 */

static uint32_t sets_of(uint64_t bytes, uint64_t ways)
{
    uint64_t sets = ways ? bytes / US_LINE / ways : 0, power = 1;

    while (2 * power <= sets)
        power *= 2;
    return sets ? (uint32_t)power : 0;
}

/* Whole lines of the host, touched as they are used: a large cache of a short run costs little. */
static bool make_tags(struct us_directory *d, struct us_sim *s, uint32_t l1_sets, uint32_t l2_sets)
{
    size_t l1 = ((size_t)l1_sets * s->sizes.l1_ways * sizeof(struct us_tag) + 63) & ~(size_t)63;
    size_t l2 = ((size_t)l2_sets * s->sizes.l2_ways * sizeof(struct us_tag) + 63) & ~(size_t)63;

    d->tag_bytes = s->ncores * (l1 + l2) + US_LINE;
    d->tags = mmap(NULL, d->tag_bytes, PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (d->tags == MAP_FAILED) {
        d->tags = NULL;
        return false;
    }
    for (unsigned i = 0; i < s->ncores; i++) {
        s->core[i].l1 = (struct us_tag *)(d->tags + i * (l1 + l2));
        s->core[i].l2 = (struct us_tag *)(d->tags + i * (l1 + l2) + l1);
    }
    return true;
}

struct us_directory *us_directory_create(struct us_sim *s)
{
    struct us_directory *d = calloc(1, sizeof(*d));
    uint32_t l1 = sets_of(s->sizes.l1, s->sizes.l1_ways),
             l2 = sets_of(s->sizes.l2, s->sizes.l2_ways);

    if (!d)
        return NULL;
    s->directory = d; /* for the caller to destroy */
    d->sim = s;
    d->l1_ways = l1 ? (uint32_t)s->sizes.l1_ways : 0;
    d->l2_ways = l2 ? (uint32_t)s->sizes.l2_ways : 0;
    d->l1_mask = l1 ? l1 - 1 : 0;
    d->l2_mask = l2 ? l2 - 1 : 0;
    d->llc_lines = (uint32_t)(s->sizes.llc / US_LINE);
    d->llc_next = calloc(s->machine->ndomains, sizeof(*d->llc_next));
    d->leaf = mmap(NULL, NLEAVES * sizeof(*d->leaf), PROT_READ | PROT_WRITE,
                   MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (d->leaf == MAP_FAILED)
        d->leaf = NULL;
    d->other_next = UINT32_MAX;
    return d->llc_next && d->leaf && make_tags(d, s, l1, l2) ? d : NULL;
}

void us_directory_destroy(struct us_directory *d)
{
    if (!d)
        return;
    if (d->tags)
        munmap(d->tags, d->tag_bytes);
    if (d->leaf) {
        for (uint64_t i = 0; i < d->next >> LEAF_SHIFT; i++)
            free(d->leaf[i]);
        for (uint64_t i = d->other_next >> LEAF_SHIFT; i < NLEAVES; i++)
            free(d->leaf[i]);
        munmap(d->leaf, NLEAVES * sizeof(*d->leaf));
    }
    free(d->llc_next);
    free(d->other);
    free(d->other_line);
    free(d);
}

/* Ranges begin at multiples of 64 MiB, so that their sizes do not decide on sets. */
bool us_maps(struct us_machine *m, const void *base, size_t bytes, unsigned node_shift)
{
    struct us_directory *d = m->sim ? m->sim->directory : NULL;
    const uint64_t unit = 1u << 20;
    uint64_t lines = ((bytes >> LINE_SHIFT) + unit) & ~(unit - 1);

    if (!d)
        return true;
    if (d->nranges == MAX_RANGES || d->next + lines > UINT32_MAX / 2)
        return false;
    d->range[d->nranges++] =
        (struct range){(uint64_t)(uintptr_t)base, bytes, (uint32_t)d->next, node_shift};
    d->next += lines;
    return true;
}

/* ---- lines by address --------------------------------------------------------------------------
 */

static void grow_others(struct us_directory *d)
{
    uint32_t room = d->other_room ? 2 * d->other_room : 1024;
    uint64_t *address = calloc(room, sizeof(*address));
    uint32_t *number = calloc(room, sizeof(*number));

    if (!address || !number)
        us_fatal("no memory for the lines of a modelled machine");
    for (uint32_t i = 0; i < d->other_room; i++) {
        uint32_t at;

        if (!d->other[i])
            continue;
        for (at = (uint32_t)(d->other[i] * 0x9e3779b9u) & (room - 1); address[at];
             at = (at + 1) & (room - 1))
            ;
        address[at] = d->other[i];
        number[at] = d->other_line[i];
    }
    free(d->other);
    free(d->other_line);
    d->other = address;
    d->other_line = number;
    d->other_room = room;
}

/* Numbers of others are given from the top down. */
static US_NOINLINE uint32_t other_line(struct us_directory *d, uint64_t address)
{
    uint64_t key = address >> LINE_SHIFT;
    uint32_t at;

    if (2 * d->nother >= d->other_room)
        grow_others(d);
    for (at = (uint32_t)(key * 0x9e3779b9u) & (d->other_room - 1); d->other[at];
         at = (at + 1) & (d->other_room - 1))
        if (d->other[at] == key)
            return d->other_line[at];
    d->other[at] = key;
    d->other_line[at] = d->other_next--;
    d->nother++;
    return d->other_line[at];
}

US_INLINE uint32_t line_of(struct us_directory *d, uint64_t address)
{
    for (unsigned i = 0; i < d->nranges; i++)
        if (address - d->range[i].base < d->range[i].length)
            return d->range[i].first + (uint32_t)((address - d->range[i].base) >> LINE_SHIFT);
    return other_line(d, address);
}

static US_NOINLINE struct line *new_leaf(struct us_directory *d, uint32_t line)
{
    struct line *leaf = calloc(LEAF_LINES, sizeof(*leaf));

    if (!leaf)
        us_fatal("no memory for the lines of a modelled machine");
    d->leaf[line >> LEAF_SHIFT] = leaf;
    return &leaf[line & (LEAF_LINES - 1)];
}

US_INLINE struct line *entry_of(struct us_directory *d, uint32_t line)
{
    struct line *leaf = d->leaf[line >> LEAF_SHIFT];

    return US_LIKELY(leaf != NULL) ? &leaf[line & (LEAF_LINES - 1)] : new_leaf(d, line);
}

/* ---- caches ------------------------------------------------------------------------------------
 */

/* Finds a tag and makes it the youngest of its set. */
US_INLINE bool look_up(struct us_tag *set, uint32_t ways, uint32_t line, uint32_t version)
{
    struct us_tag found;

    for (uint32_t i = 0; i < ways; i++) {
        if (set[i].line != line || set[i].version != version)
            continue;
        found = set[i];
        for (; i > 0; i--)
            set[i] = set[i - 1];
        set[0] = found;
        return true;
    }
    return false;
}

/* As the youngest; an older version of it, or the oldest of the set, goes. */
US_INLINE void take_in(struct us_tag *set, uint32_t ways, uint32_t line, uint32_t version)
{
    uint32_t i = 0;

    if (ways == 0)
        return;
    while (i < ways - 1 && set[i].line != line)
        i++;
    for (; i > 0; i--)
        set[i] = set[i - 1];
    set[0] = (struct us_tag){line, version};
}

US_INLINE struct us_tag *l1_set(const struct us_directory *d, const struct us_core *k,
                                uint32_t line)
{
    return k->l1 + (size_t)(line & d->l1_mask) * d->l1_ways;
}
US_INLINE struct us_tag *l2_set(const struct us_directory *d, const struct us_core *k,
                                uint32_t line)
{
    return k->l2 + (size_t)(line & d->l2_mask) * d->l2_ways;
}

static bool in_llc(const struct us_directory *d, const struct line *e, unsigned domain)
{
    for (unsigned i = 0; i < 2; i++)
        if (e->domain[i] == domain && d->llc_next[domain] - e->position[i] <= d->llc_lines)
            return true;
    return false;
}

static void into_llc(struct us_directory *d, struct line *e, unsigned domain)
{
    if (d->llc_lines == 0 || in_llc(d, e, domain))
        return;
    if (e->domain[0] != domain) {
        e->domain[1] = e->domain[0];
        e->position[1] = e->position[0];
    }
    e->domain[0] = (uint16_t)domain;
    e->position[0] = d->llc_next[domain]++;
}

/* Still in the caches of the core that wrote it. */
static bool owner_has(const struct us_directory *d, const struct line *e, uint32_t line)
{
    const struct us_core *owner = &d->sim->core[e->owner];
    const struct us_tag *set = l2_set(d, owner, line);

    for (uint32_t i = 0; i < d->l2_ways; i++)
        if (set[i].line == line && set[i].version == e->version)
            return true;
    set = l1_set(d, owner, line);
    for (uint32_t i = 0; i < d->l1_ways; i++)
        if (set[i].line == line && set[i].version == e->version)
            return true;
    return false;
}

static unsigned distance(const struct us_core *a, const struct us_core *b)
{
    return a->domain == b->domain ? SHARED_DOMAIN : a->node == b->node ? SHARED_NODE : SHARED_FAR;
}

static enum us_line_kind by_distance(enum us_line_kind nearest, unsigned distance)
{
    return (enum us_line_kind)(nearest + distance - SHARED_DOMAIN);
}

/* Where a core that has it in neither L1 nor L2 gets the line. */
static enum us_line_kind source_of(const struct us_directory *d, const struct us_core *k,
                                   const struct line *e, uint32_t line)
{
    const struct us_core *owner = e->owner == NO_OWNER ? NULL : &d->sim->core[e->owner];

    if (e->flags & DIRTY && owner && owner != k &&
        (owner_has(d, e, line) || in_llc(d, e, owner->domain)))
        return in_llc(d, e, k->domain) && !owner_has(d, e, line)
                   ? US_LINE_llc
                   : by_distance(US_LINE_line_domain, distance(k, owner));
    if (in_llc(d, e, k->domain))
        return US_LINE_llc;
    return e->home == k->node ? US_LINE_memory : US_LINE_memory_far;
}

static uint64_t cost_of(const struct us_costs *c, enum us_line_kind kind)
{
    const uint64_t cost[] = {
        0,
        c->l2_hit,
        c->llc_hit,
        c->memory,
        c->memory_far,
        c->line_domain,
        c->line_node,
        c->line_far,
        c->invalidate_domain,
        c->invalidate_node,
        c->invalidate_far,
    };

    return cost[kind];
}

/* Its home is the node that its address says, or else that of who meets it. */
static US_NOINLINE void meet(struct us_directory *d, const struct us_core *k, struct line *e,
                             uint32_t line)
{
    e->version = 1;
    e->owner = NO_OWNER;
    e->domain[0] = e->domain[1] = NO_DOMAIN;
    e->home = (uint16_t)k->node;
    for (unsigned i = 0; i < d->nranges; i++)
        if (d->range[i].node_shift && line - d->range[i].first < d->range[i].length >> LINE_SHIFT)
            e->home = (uint16_t)(((uint64_t)(line - d->range[i].first) << LINE_SHIFT) >>
                                 d->range[i].node_shift);
}

/* A core has read the line. */
static void note_reader(struct us_directory *d, const struct us_core *k, struct line *e)
{
    const struct us_core *owner = e->owner == NO_OWNER ? NULL : &d->sim->core[e->owner];
    unsigned far;

    if (!owner || owner == k)
        return;
    far = distance(k, owner);
    if (e->flags & DIRTY) /* written back on the way */
        into_llc(d, e, owner->domain);
    if (far > (e->flags & SHARED))
        e->flags = (uint8_t)((e->flags & ~(SHARED | DIRTY)) | far);
    else
        e->flags &= (uint8_t)~DIRTY;
}

/* Returns where the line came from. */
static enum us_line_kind read_line(struct us_directory *d, struct us_core *k, struct line *e,
                                   uint32_t line)
{
    enum us_line_kind kind;

    if (look_up(l1_set(d, k, line), d->l1_ways, line, e->version))
        return US_LINE_l1;
    if (look_up(l2_set(d, k, line), d->l2_ways, line, e->version)) {
        kind = US_LINE_l2;
    } else {
        kind = source_of(d, k, e, line);
        take_in(l2_set(d, k, line), d->l2_ways, line, e->version);
        into_llc(d, e, k->domain);
        note_reader(d, k, e);
    }
    take_in(l1_set(d, k, line), d->l1_ways, line, e->version);
    return kind;
}

static enum us_line_kind write_line(struct us_directory *d, struct us_core *k, struct line *e,
                                    uint32_t line)
{
    const uint16_t self = (uint16_t)(k - d->sim->core);
    const bool own = e->owner == self && !(e->flags & SHARED);
    enum us_line_kind kind = read_line(d, k, e, line);

    if (own) {
        e->flags |= DIRTY;
        return kind;
    }
    if (kind <= US_LINE_l2 && e->owner != NO_OWNER) {
        unsigned far = e->flags & SHARED;

        if (e->owner != self) {
            unsigned to_owner = distance(k, &d->sim->core[e->owner]);

            far = to_owner > far ? to_owner : far;
        }
        kind = by_distance(US_LINE_invalidate_domain, far);
    }
    e->version++;
    e->owner = self;
    e->flags = DIRTY;
    e->domain[0] = e->domain[1] = NO_DOMAIN;
    into_llc(d, e, k->domain);
    l1_set(d, k, line)[0].version = e->version; /* read_line made it the youngest */
    for (uint32_t i = 0; i < d->l2_ways; i++)
        if (l2_set(d, k, line)[i].line == line)
            l2_set(d, k, line)[i].version = e->version;
    return kind;
}

/* ---- charges -----------------------------------------------------------------------------------
 */

/* The rest of the way of a line that was asked for ahead. */
static uint64_t still_to_come(struct us_vcpu *v, uint32_t line)
{
    for (unsigned i = 0; i < v->nprefetch; i++)
        if (v->prefetch[i].line == line) {
            uint64_t ready = v->prefetch[i].ready;

            v->prefetch[i] = v->prefetch[--v->nprefetch];
            return ready > v->clock ? ready - v->clock : 0;
        }
    return 0;
}

static void ask_ahead(struct us_vcpu *v, uint32_t line, uint64_t ps)
{
    if (v->nprefetch == US_PREFETCHES) {
        v->nprefetch--;
        memmove(&v->prefetch[0], &v->prefetch[1], v->nprefetch * sizeof(v->prefetch[0]));
    }
    v->prefetch[v->nprefetch].line = line;
    v->prefetch[v->nprefetch++].ready = v->clock + ps;
}

/* The youngest line of its set in L1, and no other core has to be told: what most accesses are. */
US_INLINE bool is_at_hand(struct us_vcpu *v, const struct us_directory *d, struct line *e,
                          uint32_t line, enum us_access access)
{
    const struct us_core *k = v->core;
    const struct us_tag *youngest = l1_set(d, k, line);

    if (access > US_WRITE || v->nprefetch > 0 || d->l1_ways == 0 || youngest->line != line ||
        youngest->version != e->version || e->version == 0)
        return false;
    if (access == US_WRITE) {
        if (e->owner != (uint16_t)(k - d->sim->core) || (e->flags & SHARED))
            return false;
        e->flags |= DIRTY;
    }
    v->line_count[US_LINE_l1]++;
    return true;
}

US_INLINE void one_line(struct us_vcpu *v, struct us_directory *d, uint64_t address,
                        enum us_access access)
{
    uint32_t line = line_of(d, address);
    struct line *e = entry_of(d, line);
    enum us_line_kind kind;
    uint64_t ps;

    if (US_LIKELY(is_at_hand(v, d, e, line, access)))
        return;
    if (US_UNLIKELY(e->version == 0))
        meet(d, v->core, e, line);
    kind = access == US_WRITE || access == US_UPDATE ? write_line(d, v->core, e, line)
                                                     : read_line(d, v->core, e, line);
    ps = kind == US_LINE_l1 ? 0 : cost_of(&v->sim->cost, kind);
    v->line_count[kind]++;
    if (access == US_PREFETCH) {
        if (ps)
            ask_ahead(v, line, ps);
        return;
    }
    if (US_UNLIKELY(v->nprefetch > 0) && kind == US_LINE_l1)
        ps = still_to_come(v, line);
    if (access == US_UPDATE)
        us_sim_spend(v, v->phase, v->sim->cost.atomic);
    if (ps) {
        v->line_ps[kind] += ps;
        us_sim_spend(v, v->phase, ps);
    }
}

void us_charge_lines(const void *base, size_t bytes, enum us_access access)
{
    struct us_vcpu *v = us_running;
    uint64_t first = (uint64_t)(uintptr_t)base & ~(uint64_t)(US_LINE - 1);
    uint64_t end = (uint64_t)(uintptr_t)base + (bytes ? bytes : 1);

    for (uint64_t at = first; at < end; at += US_LINE)
        one_line(v, v->sim->directory, at, access);
}

void us_lines_hand_over(struct us_vcpu *v, const void *lock)
{
    struct us_directory *d = v->sim->directory;
    uint32_t line = line_of(d, (uint64_t)(uintptr_t)lock);
    struct line *e = entry_of(d, line);

    if (e->version == 0)
        meet(d, v->core, e, line);
    write_line(d, v->core, e, line);
}

void us_sim_work(struct us_vcpu *v, enum us_phase phase, uint64_t ps)
{
    if (v->core->busy > 1)
        ps = ps * v->sim->cost.smt_slowdown / 100;
    us_sim_spend(v, phase, ps);
}

void us_charge_instructions(uint64_t n)
{
    us_sim_work(us_running, us_running->phase, n * us_running->sim->cost.instruction);
}

void us_charge_provider(bool alloc)
{
    const struct us_costs *c = &us_running->sim->cost;

    us_sim_spend(us_running, US_PHASE_PROVIDER, alloc ? c->page_alloc : c->page_free);
}

void us_charge_zeroing(size_t bytes)
{
    const struct us_sim *s = us_running->sim;

    us_sim_spend(us_running, us_running->phase, s->cost.page_zero * bytes / s->machine->page_size);
}

void us_charge_fault(void)
{
    us_sim_spend(us_running, US_PHASE_PROVIDER, us_running->sim->cost.page_fault);
}

enum us_phase us_charge_phase(enum us_phase phase)
{
    enum us_phase before = us_running->phase;

    us_running->phase = phase;
    return before;
}
