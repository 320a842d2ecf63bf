"""Tunables given with the allocator: defaults of all its caches."""

from __future__ import annotations

from collections.abc import Callable

import pytest

import unislab as us


@pytest.mark.parametrize("names", [("min_order", "max_order"), ("max_order", "min_order")])
def test_tunables_that_belong_together_come_in_any_order(
    make: Callable[..., us.Allocator], names: tuple[str, str]
) -> None:
    """min_order 4 is right once max_order is 5, whichever is written first."""
    values = {"min_order": 4, "max_order": 5}
    alloc = make("slub", **{name: values[name] for name in names})
    assert alloc.cache("kmalloc-64").tunables.order in (4, 5)


def test_a_wrong_tunable_leaves_no_allocator(make: Callable[..., us.Allocator]) -> None:
    with pytest.raises(ValueError, match="min_order 4 is above max_order 3"):
        make("slub", min_order=4)


def test_tunables_in_a_dict_are_told_to_be_keywords(make: Callable[..., us.Allocator]) -> None:
    with pytest.raises(TypeError, match="keywords themselves: min_order=1, not tunables="):
        make("slub", tunables={"min_order": 1})
    with pytest.raises(TypeError, match="keywords themselves: min_order=1, not tunables="):
        make("slub").create_cache("named", 64, tunables={"min_order": 1})
