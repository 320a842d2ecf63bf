"""Slabs and queues of a cache as tables."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd

    from unislab.cache import _QueueRow, _SlabRow

__all__ = ["QUEUE_COLUMNS", "SLAB_COLUMNS", "queues_frame", "slabs_frame"]

SLAB_COLUMNS = [
    "address",
    "node",
    "order",
    "objects",
    "in_use",
    "free",
    "queued",
    "cpu",
    "place",
    "position",
]
QUEUE_COLUMNS = [
    "kind",
    "name",
    "cpu",
    "domain",
    "node",
    "objects",
    "capacity",
    "touched",
    "addresses",
]


def slabs_frame(rows: list[_SlabRow]) -> pd.DataFrame:
    """Rows of slabs; addresses stay exact, what does not apply is ``<NA>``."""
    import pandas as pd

    frame = pd.DataFrame(rows, columns=SLAB_COLUMNS)
    return frame.astype(
        dict.fromkeys(("node", "order", "objects", "in_use", "free", "queued"), "int64")
        | {"address": "uint64", "cpu": "Int64", "position": "Int64"}
    )


def queues_frame(rows: list[_QueueRow]) -> pd.DataFrame:
    """Rows of queues, addresses as lists."""
    import pandas as pd

    frame = pd.DataFrame(rows, columns=QUEUE_COLUMNS)
    return frame.astype(
        dict.fromkeys(("cpu", "domain", "node"), "Int64")
        | {"objects": "int64", "capacity": "int64", "touched": bool}
    )
