/* registry.c - the policies by name. A new policy is a file beside this one and a line
 * here. Their order is that in which all is listed: the README's table has it too. */
#include <string.h>

#include "policy/policy.h"

extern const struct us_policy us_policy_unified;
extern const struct us_policy us_policy_unified_v4;
extern const struct us_policy us_policy_sleb;
extern const struct us_policy us_policy_slub;
extern const struct us_policy us_policy_sheaves;
extern const struct us_policy us_policy_slub_thrash;
extern const struct us_policy us_policy_slub_partial;
extern const struct us_policy us_policy_slab;
extern const struct us_policy us_policy_slqb;

/* clang-format off */
static const struct us_policy *const policies[] = {
    &us_policy_unified,
    &us_policy_unified_v4,
    &us_policy_sleb,
    &us_policy_slab,
    &us_policy_slub,
    &us_policy_slub_thrash,
    &us_policy_slub_partial,
    &us_policy_slqb,
    &us_policy_sheaves,
};
/* clang-format on */

const struct us_policy *us_policy_at(unsigned i)
{
    return i < sizeof(policies) / sizeof(policies[0]) ? policies[i] : NULL;
}

const struct us_policy *us_policy_find(const char *name)
{
    unsigned i;

    for (i = 0; us_policy_at(i); i++)
        if (strcmp(us_policy_at(i)->name, name) == 0)
            return us_policy_at(i);
    return NULL;
}
