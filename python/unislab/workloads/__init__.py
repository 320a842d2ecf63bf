"""Workloads that come with the package: each function returns a :class:`unislab.Workload`.

========================= ========================================================================
:func:`pair`              allocate and free one object, over and over
:func:`batch`             allocate many, then free them, in the same or the reverse order
:func:`producer_consumer` allocate on one CPU, free on another
========================= ========================================================================
"""

from __future__ import annotations

from unislab.workloads.micro import batch, pair, producer_consumer

__all__ = ["batch", "pair", "producer_consumer"]
