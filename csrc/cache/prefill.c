/* prefill.c - sheaves that a caller has to itself, around the hooks of a policy that has them.
 *
 * A prefilled sheaf belongs to its caller until it comes back; the policy keeps a list of those
 * that are out, so that accounts, validation and the end of a cache find their objects. They are
 * queued, not live, until they are handed out: only then does debug F mark them as in use.
 */
#include "cache/internal.h"

#include <string.h>

size_t us_append_prefilled(char *text, size_t size, size_t length, const struct us_account *account)
{
    return us_append(text, size, length, "%llu prefilled shea%s of %llu object%s",
                     (unsigned long long)account->prefilled, account->prefilled == 1 ? "f" : "ves",
                     (unsigned long long)account->prefilled_objects,
                     account->prefilled_objects == 1 ? "" : "s");
}

static bool check_number(const struct us_cache *c, size_t n, struct us_error *e)
{
    if (!c->policy->prefill)
        us_error_fill(e, US_ENOSYS,
                      "cache '%s': policy %s has no sheaves to prefill; take the objects in one "
                      "call with alloc_bulk, or use policy sheaves",
                      c->name, c->policy->name);
    else if (n == 0 || n > US_RING_MAX)
        us_error_fill(e, US_EINVAL,
                      "cache '%s': a sheaf cannot be filled with %zu objects: expected 1 to %u; "
                      "more of them take several sheaves, or alloc_bulk",
                      c->name, n, US_RING_MAX);
    else
        return true;
    return false;
}

struct us_sheaf *us_cache_prefill_sheaf(struct us_cache *c, unsigned flags, size_t n,
                                        struct us_error *e)
{
    struct us_sheaf *s;

    if (!check_number(c, n, e))
        return NULL;
    s = c->policy->prefill(c, flags & ~(unsigned)US_ZERO, (uint32_t)n);
    if (!s)
        us_cache_explain_failures(c, n, c->size, e);
    return s;
}

void *us_cache_alloc_from_sheaf(struct us_cache *c, unsigned flags, struct us_sheaf *s)
{
    void *object;

    if (c->flags & US_DEBUG_F)
        object = us_debug_alloc_from_sheaf(c, s);
    else
        object = c->policy->alloc_prefilled(c, s);
    if (object && (flags & US_ZERO))
        memset(object, 0, c->size);
    return object;
}

enum us_status us_cache_refill_sheaf(struct us_cache *c, unsigned flags, struct us_sheaf **s,
                                     size_t n, struct us_error *e)
{
    if (!check_number(c, n, e))
        return e ? e->status : US_EINVAL;
    if (c->policy->refill(c, flags & ~(unsigned)US_ZERO, s, (uint32_t)n))
        return US_OK;
    us_cache_explain_failures(c, n, c->size, e);
    return US_ENOMEM;
}

void us_cache_return_sheaf(struct us_cache *c, struct us_sheaf *s)
{
    c->policy->give_back(c, s);
}

size_t us_cache_sheaf_size(const struct us_sheaf *s)
{
    return us_sheaf_size(s);
}

size_t us_cache_sheaf_capacity(const struct us_sheaf *s)
{
    return s->capacity;
}
