"""Names of counters, as the published descriptions give them."""

from __future__ import annotations

ALLOCS = ("alloc_fast", "alloc_second_level", "alloc_slow", "alloc_remote")
FREES = ("free_fast", "free_second_level", "free_slow", "free_remote")
COMMON = (*ALLOCS, *FREES, "slab_new", "slab_free", "flush", "expire_objects", "objects_moved")

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
