"""Addresses from Python and to Python; the extension modules call what is here."""

from __future__ import annotations

import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["as_addresses", "as_array"]


def as_array(words: Any) -> NDArray[np.uint64]:
    """The array over a buffer of 64-bit words."""
    import numpy as np

    return np.frombuffer(words, np.uint64)


def as_addresses(addresses: Any) -> NDArray[np.uint64]:
    """A contiguous array of addresses from any sequence of integers."""
    import numpy as np

    if isinstance(addresses, (list, tuple)):
        return _of_integers(addresses)
    array = np.asarray(addresses)
    if array.ndim == 0:
        raise TypeError(f"expected a sequence of addresses, got {addresses!r:.60}")
    if array.size == 0:
        return np.empty(0, np.uint64)
    if array.dtype == object:
        return _of_integers(array.ravel().tolist())
    if array.dtype.kind not in "iu" or array.itemsize == 1:  # bytes are no addresses
        raise TypeError(f"expected integer addresses, got an array of {array.dtype}")
    if array.dtype.kind == "i" and bool((array < 0).any()):
        raise ValueError(f"{int(array.min())} is no address: expected 0 to 2**64 - 1")
    return np.ascontiguousarray(array, np.uint64)


def _of_integers(addresses: Sequence[Any]) -> NDArray[np.uint64]:
    """One by one: NumPy would make floats of large and small integers mixed."""
    import numpy as np

    try:
        return np.fromiter(map(operator.index, addresses), np.uint64, len(addresses))
    except TypeError:
        wrong = next(a for a in addresses if not hasattr(a, "__index__"))
        raise TypeError(f"{wrong!r:.60} is no address: expected an integer") from None
    except OverflowError:
        wrong = next(a for a in addresses if not 0 <= a < 2**64)
        raise ValueError(f"{wrong} is no address: expected 0 to 2**64 - 1") from None
