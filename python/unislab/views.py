"""The part of an allocator that looks inside: counters, accounts, checks and tables."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from unislab.allocator_base import AllocatorBase

if TYPE_CHECKING:
    import pandas as pd

    from unislab.stats import Stats
    from unislab.validation import Validation

__all__ = ["Views"]


class Views(AllocatorBase):
    """What an allocator tells of all its caches together, and of its memory."""

    __slots__ = ()

    def stats(self, exact: bool = False) -> Stats:
        """The common counters summed over all caches, and the use of locks by class.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     before = alloc.stats()
        ...     alloc.kfree(alloc.kmalloc(10))
        ...     (alloc.stats() - before).allocs
        1
        """
        from unislab.stats import allocator_stats

        return allocator_stats(self, exact)

    def account(self) -> dict[str, int]:
        """Byte accounts, exact: see :meth:`Cache.account`; ``metadata``, ``resident``,
        ``address_range`` and ``budget`` stand apart, with ``reserved_peak``, ``metadata_peak`` and
        ``resident_peak``.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     a = alloc.account()
        >>> a["reserved"] == a["live"] + a["queued"] + a["free_in_slabs"] + a["waste"]
        True
        """
        return self._account()

    def validate(self) -> Validation:
        """Check every cache; ``str()`` of the result has one line for each that has slabs.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     print(alloc.validate())
        Validation: no slabs
        """
        from unislab.validation import allocator_validation

        return allocator_validation(self)

    def slabinfo(self) -> pd.DataFrame:
        """One row a cache, columns as ``/proc/slabinfo`` has them.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     alloc.slabinfo().loc[0, "name"]
        'kmalloc-large'
        """
        from unislab.inspect.slabinfo import slabinfo_frame

        return slabinfo_frame(self)

    def slabinfo_text(self) -> str:
        """The same in the format of ``/proc/slabinfo``.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator() as alloc:
        ...     print(alloc.slabinfo_text().splitlines()[0])
        slabinfo - version: 2.1
        """
        from unislab.inspect.slabinfo import slabinfo_text

        return slabinfo_text(self)

    def memory_info(self, node: int = 0) -> dict[str, Any]:
        """The page provider of a node, in pages.

        Returns
        -------
        dict
            ``managed``, ``free``, the watermarks ``min``, ``low`` and ``high``, counts of
            ``allocs``, ``frees``, ``fallbacks`` and ``failures``, and ``free_blocks``, a list by
            order.

        Examples
        --------
        >>> import unislab as us
        >>> with us.Allocator(memory="16 MiB") as alloc:
        ...     info = alloc.memory_info()
        >>> 0 < info["min"] <= info["low"] <= info["high"] <= info["free"]
        True
        """
        return self._node_memory(node)
