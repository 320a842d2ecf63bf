"""Names of counters, as the published descriptions give them."""

from __future__ import annotations

ALLOCS = ("alloc_fast", "alloc_second_level", "alloc_slow", "alloc_remote")
FREES = ("free_fast", "free_second_level", "free_slow", "free_remote")
COMMON = (*ALLOCS, *FREES, "slab_new", "slab_free", "flush", "expire_objects", "objects_moved")

SLAB = (
    "allochit",
    "allocmiss",
    "freehit",
    "freemiss",
    "listallocs",
    "maxobjs",
    "grown",
    "reaped",
    "errors",
    "maxfreeable",
    "nodeallocs",
    "remotefrees",
    "alienoverflow",
)

#: SLUB of 2.6.36, and the 26 counters of 3.2 to 6.17.
SLUB = (
    "alloc_fastpath",
    "alloc_slowpath",
    "free_fastpath",
    "free_slowpath",
    "free_frozen",
    "free_add_partial",
    "free_remove_partial",
    "alloc_from_partial",
    "alloc_slab",
    "alloc_refill",
    "free_slab",
    "cpuslab_flush",
    "deactivate_full",
    "deactivate_empty",
    "deactivate_to_head",
    "deactivate_to_tail",
    "deactivate_remote_frees",
    "order_fallback",
)
SLUB_PARTIAL = (
    *SLUB,
    "alloc_node_mismatch",
    "deactivate_bypass",
    "cmpxchg_double_cpu_fail",
    "cmpxchg_double_fail",
    "cpu_partial_alloc",
    "cpu_partial_free",
    "cpu_partial_node",
    "cpu_partial_drain",
)
UNIFIED = (
    "alloc_fastpath",
    "alloc_shared",
    "alloc_alien",
    "alloc_alien_slow",
    "alloc_direct",
    "alloc_slowpath",
    "free_fastpath",
    "free_shared",
    "free_alien",
    "free_alien_slow",
    "free_direct",
    "free_slowpath",
    "free_add_partial",
    "free_remove_partial",
    "alloc_from_partial",
    "alloc_slab",
    "free_slab",
    "queue_flush",
    "order_fallback",
)

#: Sizes of the general caches: SLUB's, which Unified has too, and SLAB's.
GENERAL_SIZES = (8, 16, 32, 64, 96, 128, 192, *(1 << shift for shift in range(8, 14)))
SLAB_GENERAL_SIZES = (32, 64, 128, 192, *(1 << shift for shift in range(8, 23)))


def general_sizes(policy: str) -> tuple[int, ...]:
    """Sizes of a policy's general caches on 4 KiB pages and lines of 64 bytes."""
    return SLAB_GENERAL_SIZES if policy == "slab" else GENERAL_SIZES


# Which historical counters of Unified make up each common one.
UNIFIED_FEEDS = {
    "alloc_fast": ("alloc_fastpath",),
    "alloc_second_level": ("alloc_shared",),
    "alloc_slow": ("alloc_slowpath",),
    "alloc_remote": ("alloc_alien", "alloc_direct"),
    "free_fast": ("free_fastpath",),
    "free_second_level": ("free_shared",),
    "free_slow": ("free_slowpath",),
    "free_remote": ("free_alien", "free_alien_slow", "free_direct"),
    "slab_new": ("alloc_slab",),
    "slab_free": ("free_slab",),
    "flush": ("queue_flush",),
}
