/* tunables.c - reading, checking and changing the tunables of caches.
 *
 * A policy declares its tunables as rows (policy.h). A value is a number, a number with a size unit
 * where the row counts bytes, or one of the row's texts. A default outside its own limits means "by
 * rule": the policy works it out when the cache is made, and it can only be given at creation. An
 * allocator's default that does not fit a cache gives way there, by that rule or by what is set
 * beside it (us_tunable_binds); what was given to the cache itself is refused.
 */
#include "cache/internal.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

struct us_defaults {
    bool *given;    /* [ntunables] */
    int64_t *value; /* [ntunables] */
};

/* ---- names ------------------------------------------------------------------------------------
 */

#define NAME_MAX_COMPARED 63

/* Changes (insert, remove, replace, swap of neighbours) that turn one name into the other. */
static unsigned distance(const char *a, const char *b)
{
    unsigned rows[3][NAME_MAX_COMPARED + 1];
    unsigned *older = rows[0], *old = rows[1], *now = rows[2];
    const size_t n = strlen(a), m = strlen(b);
    size_t i, j;

    if (n > NAME_MAX_COMPARED || m > NAME_MAX_COMPARED)
        return NAME_MAX_COMPARED;
    for (j = 0; j <= m; j++)
        old[j] = (unsigned)j;
    for (i = 1; i <= n; i++) {
        unsigned *spare = older;

        now[0] = (unsigned)i;
        for (j = 1; j <= m; j++) {
            unsigned best = old[j - 1] + (a[i - 1] != b[j - 1]);

            if (old[j] + 1 < best)
                best = old[j] + 1;
            if (now[j - 1] + 1 < best)
                best = now[j - 1] + 1;
            if (i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1] &&
                older[j - 2] + 1 < best)
                best = older[j - 2] + 1;
            now[j] = best;
        }
        older = old;
        old = now;
        now = spare;
    }
    return old[m];
}

const char *us_nearest(const char *name, const char *const *names, size_t n)
{
    const size_t length = strlen(name);
    const char *nearest = NULL;
    unsigned best = (unsigned)(length / 3) + 2; /* farther away it is another word */
    size_t i;

    for (i = 0; i < n; i++) {
        unsigned d = distance(name, names[i]);

        if (length >= 3 && d > 1 && strncmp(name, names[i], length) == 0)
            d = 1; /* the beginning of a name */
        if (d < best) {
            best = d;
            nearest = names[i];
        }
    }
    return nearest;
}

const struct us_tunable *us_tunable_find(const struct us_policy *p, const char *name,
                                         struct us_error *e)
{
    const char *names[128] = {NULL};
    const char *near;
    char known[512] = "";
    size_t length = 0;
    unsigned i, n = p->ntunables < 128 ? p->ntunables : 128;

    for (i = 0; i < p->ntunables; i++)
        if (strcmp(p->tunables[i].name, name) == 0)
            return &p->tunables[i];
    for (i = 0; i < n; i++) {
        names[i] = p->tunables[i].name;
        length = us_append(known, sizeof(known), length, "%s%s", i ? ", " : "", names[i]);
    }
    near = us_nearest(name, names, n);
    if (near)
        us_error_fill(e, US_EINVAL, "policy %s has no tunable '%s': did you mean '%s'?", p->name,
                      name, near);
    else
        us_error_fill(e, US_EINVAL, "policy %s has no tunable '%s'; it has %s", p->name, name,
                      n ? known : "none");
    return NULL;
}

/* ---- values ------------------------------------------------------------------------------------
 */

static bool bytes_unit(const char *text, int64_t *factor)
{
    static const struct {
        const char *text;
        int64_t factor;
    } unit[] = {{"B", 1},         {"kB", 1000},     {"MB", 1000000}, {"GB", 1000000000},
                {"KiB", 1 << 10}, {"MiB", 1 << 20}, {"GiB", 1 << 30}};
    unsigned i;

    for (i = 0; i < sizeof(unit) / sizeof(unit[0]); i++)
        if (strcmp(text, unit[i].text) == 0) {
            *factor = unit[i].factor;
            return true;
        }
    return false;
}

static bool parse_number(const struct us_tunable *t, const char *text, int64_t *out)
{
    int64_t factor = 1;
    char *end;
    long long value;

    errno = 0;
    value = strtoll(text, &end, 0);
    if (end == text || errno)
        return false;
    while (isspace((unsigned char)*end))
        end++;
    if (*end && !(strcmp(t->unit, "bytes") == 0 && bytes_unit(end, &factor)))
        return false;
    return !__builtin_mul_overflow(value, factor, out);
}

static enum us_status explain_value(const struct us_policy *p, const struct us_tunable *t,
                                    const char *value, struct us_error *e)
{
    char texts[120] = "";
    const struct us_choice *c;
    size_t length = 0;
    int64_t words = 0;

    for (c = t->choices; c && c->text; c++, words++)
        length =
            us_append(texts, sizeof(texts), length, "%s'%s'", length ? ", " : "one of ", c->text);
    if (words && words == t->max - t->min + 1) /* each number has its word */
        return us_error_fill(e, US_EINVAL, "%s of policy %s is '%s'; expected %s", t->name, p->name,
                             value, texts);
    if (t->min == t->max)
        return us_error_fill(e, US_EINVAL, "%s of policy %s is '%s'; expected %" PRId64, t->name,
                             p->name, value, t->min);
    if (t->max == INT64_MAX)
        return us_error_fill(e, US_EINVAL,
                             "%s of policy %s is '%s'; expected %" PRId64 " or more (%s)%s%s",
                             t->name, p->name, value, t->min, t->unit, words ? " or " : "", texts);
    return us_error_fill(
        e, US_EINVAL, "%s of policy %s is '%s'; expected %" PRId64 " to %" PRId64 " (%s)%s%s",
        t->name, p->name, value, t->min, t->max, t->unit, words ? " or " : "", texts);
}

/* at_creation: the default itself is accepted too, though it may lie outside the limits. */
static enum us_status parse(const struct us_policy *p, const struct us_tunable *t,
                            const char *value, bool at_creation, int64_t *out, struct us_error *e)
{
    const struct us_choice *c;

    for (c = t->choices; c && c->text; c++)
        if (strcmp(c->text, value) == 0) {
            *out = c->code;
            return US_OK;
        }
    if (parse_number(t, value, out) &&
        ((*out >= t->min && *out <= t->max) || (at_creation && *out == t->def)))
        return US_OK;
    return explain_value(p, t, value, e);
}

enum us_status us_tunable_parse(const struct us_policy *p, const struct us_tunable *t,
                                const char *value, int64_t *out, struct us_error *e)
{
    return parse(p, t, value, false, out, e);
}

static enum us_status parse_for_creation(const struct us_policy *p, const char *name,
                                         const char *value, unsigned *row, int64_t *out,
                                         struct us_error *e)
{
    const struct us_tunable *t = us_tunable_find(p, name, e);

    if (!t)
        return US_EINVAL;
    *row = (unsigned)(t - p->tunables);
    if (t->flags & US_T_READONLY)
        return us_error_fill(e, US_EINVAL, "%s of policy %s cannot be set: it is computed", t->name,
                             p->name);
    return parse(p, t, value, true, out, e);
}

/* ---- defaults of an allocator ---------------------------------------------------------------- */

static void free_defaults(struct us_defaults *d)
{
    if (!d)
        return;
    free(d->given);
    free(d->value);
    free(d);
}

static struct us_defaults *new_defaults(const struct us_allocator *a, struct us_error *e)
{
    const unsigned n = a->policy->ntunables + 1;
    struct us_defaults *d = calloc(1, sizeof(*d));

    if (d) {
        d->given = calloc(n, sizeof(*d->given));
        d->value = calloc(n, sizeof(*d->value));
        if (d->given && d->value)
            return d;
    }
    free_defaults(d);
    us_error_fill(e, US_ENOMEM, "no memory for the defaults of an allocator");
    return NULL;
}

bool us_defaults_create(struct us_allocator *a, struct us_error *e)
{
    a->defaults = new_defaults(a, e);
    return a->defaults != NULL;
}

void us_defaults_destroy(struct us_allocator *a)
{
    free_defaults(a->defaults);
    a->defaults = NULL;
}

struct us_defaults *us_defaults_begin(struct us_allocator *a, struct us_error *e)
{
    struct us_defaults *before = a->defaults, *copy = new_defaults(a, e);
    unsigned row;

    if (!copy)
        return NULL;
    for (row = 0; row < a->policy->ntunables; row++) {
        copy->given[row] = before->given[row];
        copy->value[row] = before->value[row];
    }
    a->defaults = copy;
    return before;
}

void us_defaults_end(struct us_allocator *a, struct us_defaults *before, bool keep)
{
    free_defaults(keep ? before : a->defaults);
    if (!keep)
        a->defaults = before;
}

enum us_status us_default_set(struct us_allocator *a, const char *name, const char *value,
                              struct us_error *e)
{
    unsigned row = 0;
    int64_t parsed = 0;
    enum us_status status = parse_for_creation(a->policy, name, value, &row, &parsed, e);

    if (status != US_OK)
        return status;
    a->defaults->given[row] = true;
    a->defaults->value[row] = parsed;
    return US_OK;
}

bool us_tunables_fill(struct us_allocator *a, struct us_cache *c, const char *const *names,
                      const char *const *values, size_t n, struct us_error *e)
{
    const struct us_policy *p = c->policy;
    unsigned row;
    size_t i;

    for (row = 0; row < p->ntunables; row++)
        c->tunable[row] = a->defaults->given[row] ? a->defaults->value[row] : p->tunables[row].def;
    for (i = 0; i < n; i++) {
        int64_t value = 0;

        if (parse_for_creation(p, names[i], values[i], &row, &value, e) != US_OK)
            return false;
        c->tunable[row] = value;
        c->given |= 1ull << row;
    }
    return true;
}

/* ---- live ------------------------------------------------------------------------------------ */

/* Config lock held. The policy changes a cache while nothing else runs in the allocator. */
static enum us_status apply(struct us_cache *c, const struct us_tunable *t, int64_t value,
                            struct us_error *e)
{
    struct us_local *local = &c->local;
    enum us_status status;
    struct us_flight f;

    if (!t->set) {
        __atomic_store_n(&c->tunable[t - c->policy->tunables], value, __ATOMIC_RELAXED);
        return US_OK;
    }
    us_gate_shut(c->machine, &f);
    us_local_close_all(&local, 1, c->machine);
    status = t->set(c, &f, value, e);
    us_local_open_all(&local, 1, c->machine);
    us_gate_open(&f);
    return status;
}

enum us_status us_tunable_set(struct us_cache *c, const char *name, const char *value,
                              struct us_error *e)
{
    struct us_allocator *a = c->owner;
    const struct us_tunable *t = us_tunable_find(c->policy, name, e);
    enum us_status status;
    int64_t parsed;

    if (!t)
        return US_EINVAL;
    if (t->flags & US_T_READONLY)
        return us_error_fill(e, US_EINVAL, "%s of cache '%s' cannot be set: it is computed",
                             t->name, c->name);
    if (t->flags & US_T_CREATE)
        return us_error_fill(e, US_EINVAL,
                             "%s of cache '%s' is fixed once the cache exists: give it at creation",
                             t->name, c->name);
    status = us_tunable_parse(c->policy, t, value, &parsed, e);
    if (status != US_OK)
        return status;
    us_config_take(a);
    status = apply(c, t, parsed, e);
    if (status == US_OK)
        us_schedule(a, c); /* the tunable may be a period */
    us_config_drop(a);
    return status;
}

/* A computed value looks at queues, which a resize takes away: so it is a flight. */
static int64_t shown_value(struct us_cache *c, const struct us_tunable *t)
{
    struct us_flight f;
    int64_t value;

    if (!t->get)
        return __atomic_load_n(&c->tunable[t - c->policy->tunables], __ATOMIC_RELAXED);
    if (!us_flight_try(c->machine, &f))
        return 0;
    value = t->get(c);
    us_flight_leave(&f);
    return value;
}

enum us_status us_tunable_get(struct us_cache *c, const char *name, int64_t *value,
                              const char **text, struct us_error *e)
{
    const struct us_tunable *t = us_tunable_find(c->policy, name, e);
    const struct us_choice *choice;

    if (!t)
        return US_EINVAL;
    *value = shown_value(c, t);
    if (!text)
        return US_OK;
    *text = NULL;
    for (choice = t->choices; choice && choice->text; choice++)
        if (choice->code == *value)
            *text = choice->text;
    return US_OK;
}
