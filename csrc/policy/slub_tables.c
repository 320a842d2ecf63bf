/* slub_tables.c - the tables of slub and slub-thrash. */
#include "policy/slub.h"

static const struct us_choice epochs[] = {
    {"2.6.25", US_SLUB_2_6_25},
    {"2.6.32", US_SLUB_2_6_32},
    {NULL, 0},
};

static const struct us_choice modes[] = {
    {"off", US_SLUB_OFF},
    {"ratio", US_SLUB_RATIO},
    {"mostfree", US_SLUB_MOSTFREE},
    {NULL, 0},
};

const struct us_tunable us_slub_tunables[] = {US_SLUB_TUNABLES(US_CHOICE_ROW)};
const struct us_tunable us_slub_thrash_tunables[] = {US_SLUB_THRASH_TUNABLES(US_CHOICE_ROW)};
const struct us_counter us_slub_counters[] = {US_SLUB_COUNTERS(US_COUNTER_ROW)};
const struct us_counter us_slub_thrash_counters[] = {US_SLUB_THRASH_COUNTERS(US_COUNTER_ROW)};
