"""What the published columns are modelled by."""

from __future__ import annotations

from typing import Any

__all__ = ["POLICIES", "SLUB", "Policy"]

#: A policy and its tunables.
Policy = tuple[str, tuple[tuple[str, Any], ...]]

SLUB: Policy = ("slub", (("epoch", "2.6.32"),))
#: By heading.
POLICIES: dict[str, Policy] = {
    "SLAB": ("slab", ()),
    "SLUB": SLUB,
    "SLUB+patchset": ("slub-thrash", (("epoch", "2.6.32"), ("mode", "ratio"))),
    "Unified V4": ("unified-v4", ()),
    "SLUB+Q": ("sleb", ()),
    "SLUB+Q V2": ("sleb", ()),
}
