"""Saved traces: a compressed numpy archive of the columns, and everything else as JSON."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from unislab._trace_columns import COLUMN_DTYPES
from unislab._trace_open import TraceFormatError, source_name

_WHAT = "unislab trace 1"


def save(
    path: str | os.PathLike[str], columns: Mapping[str, NDArray[Any]], about: Mapping[str, Any]
) -> None:
    """Write columns and what is known about them, exactly to ``path``."""
    text = np.frombuffer(json.dumps({"what": _WHAT, **about}).encode(), np.uint8)
    with open(path, "wb") as file:
        arrays: dict[str, Any] = {"about": text, **columns}
        np.savez_compressed(file, **arrays)


def _opened(path: str | os.PathLike[str] | BinaryIO) -> AbstractContextManager[Any]:
    return open(path, "rb") if isinstance(path, (str, os.PathLike)) else nullcontext(path)


def load(
    path: str | os.PathLike[str] | BinaryIO,
) -> tuple[dict[str, NDArray[Any]], dict[str, Any]]:
    """What :func:`save` wrote; raises TraceFormatError for anything else."""
    try:
        # NumPy leaves a file open that it opened itself and could not read.
        with _opened(path) as file, np.load(file, allow_pickle=False) as archive:
            about = json.loads(archive["about"].tobytes())
            if about.pop("what") != _WHAT:
                raise KeyError("what")
            columns = {n: archive[n].astype(t, copy=False) for n, t in COLUMN_DTYPES.items()}
    except OSError:
        raise
    except Exception as error:  # whatever numpy, zipfile and json make of a file of another kind
        raise TraceFormatError(
            source_name(path),
            None,
            None,
            f"is no trace saved by Trace.save ({error}); printed traces are read by Trace.read",
        ) from error
    return columns, about
