"""Merged caches (aliases): when, what they share, and how names come and go.

The rules are those of SLUB: a new cache becomes another name for the newest old one that has the
same reclaim and accounting flags, no checks and no constructor, whose stride holds the new size,
rounded to its alignment, with less than 8 bytes left, and is a multiple of the new alignment.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from rules.books import balance_all
from rules.machines import place

import unislab as us

pytestmark = pytest.mark.every_policy

Make = Callable[..., us.Allocator]

# No general cache has these strides, so that the caches of a test meet only each other.
SIZE = 216  # 27 words


@pytest.fixture
def merging(make: Make, policy: str, kind: str) -> us.Allocator:
    """An allocator that merges, under each policy."""
    return make(policy, merge=True, **place(kind))


def made(alloc: us.Allocator, name: str, size: int = SIZE, **options: Any) -> us.Cache:
    """A cache; `debug` and the like as for create_cache."""
    return alloc.create_cache(name, size, **options)


def own(alloc: us.Allocator) -> dict[str, Any]:
    """A tunable that a cache of the policy can be given, at the value it has anyway."""
    probe = alloc.create_cache("probe", 1000)
    for name, value in dict(probe.tunables).items():
        try:
            alloc.create_cache("with", 1000, **{name: value}).destroy()
        except ValueError:  # computed
            continue
        probe.destroy()
        return {name: value}
    raise AssertionError("nothing can be given")


# ---- when --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {}),
        ({}, {"size": SIZE - 7}),  # rounded to words it is the same
        ({"size": SIZE - 7}, {}),
        ({}, {"align": 8}),
        ({"size": 448}, {"size": 448, "align": 64}),  # seven lines: a multiple of one
        ({"size": 448}, {"size": 400, "flags": "hwcache_align"}),
        ({"flags": "reclaim_account"}, {"flags": "reclaim_account"}),
        ({"flags": "account"}, {"flags": "account"}),
    ],
)
def test_merged(merging: us.Allocator, first: dict[str, Any], second: dict[str, Any]) -> None:
    a, b = made(merging, "a", **first), made(merging, "b", **second)
    assert (a.aliases, b.aliases) == (("b",), ("a",))
    sizes = [options.get("size", SIZE) for options in (first, second)]
    assert a.size == b.size == max(sizes)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        ({}, {"size": SIZE - 8}),  # a word less
        ({}, {"size": SIZE + 1}),
        ({}, {"align": 16}),  # 216 is no multiple of 16
        ({"flags": "reclaim_account"}, {}),
        ({}, {"flags": "reclaim_account"}),
        ({"flags": "account"}, {}),
        ({"flags": "lowmem"}, {}),
        ({}, {"flags": "mem_spread"}),
        ({"debug": "F"}, {}),
        ({}, {"debug": "F"}),
        ({"debug": "F"}, {"debug": "F"}),
        ({"constructor": b"x"}, {}),
        ({}, {"constructor": b"x"}),
        ({"constructor": b"x"}, {"constructor": b"x"}),
        ({}, {"constructor": lambda view: None}),
    ],
)
def test_not_merged(merging: us.Allocator, first: dict[str, Any], second: dict[str, Any]) -> None:
    a, b = made(merging, "a", **first), made(merging, "b", **second)
    assert (a.aliases, b.aliases) == ((), ())
    assert len(b.live()) == 0
    with a.alloc():
        assert len(b.live()) == 0


def test_tunables_of_its_own_keep_a_cache_apart(merging: us.Allocator) -> None:
    given = own(merging)
    assert made(merging, "own", **given).aliases == ()
    assert made(merging, "plain").aliases == ()
    assert made(merging, "own too", **given).aliases == ()
    assert made(merging, "plain too").aliases == ("plain",)


def test_flags_choose_between_two(merging: us.Allocator) -> None:
    """Two caches of one stride exist only while flags (or tunables) keep them apart."""
    made(merging, "old", flags="account")
    made(merging, "new", flags="reclaim_account")
    assert made(merging, "third", flags="account").aliases == ("old",)
    assert made(merging, "fourth", flags="reclaim_account").aliases == ("new",)
    assert made(merging, "fifth").aliases == ()


def test_a_general_cache_serves_too(merging: us.Allocator) -> None:
    named = made(merging, "named", 128)
    general = merging.cache("kmalloc-128")
    assert named.aliases == ("kmalloc-128",)
    assert (named.general, general.general) == (False, True)
    address = merging.kmalloc(128)
    named.free(address)
    with pytest.raises(ValueError, match="general"):
        general.destroy()
    named.destroy()
    assert general.aliases == ()
    assert general.alive


def test_off_unless_asked_for(make: Make, policy: str) -> None:
    alloc = make(policy)
    a, b = made(alloc, "a"), made(alloc, "b")
    assert (a.aliases, b.aliases) == ((), ())


def test_under_checks_nothing_merges(make: Make, policy: str) -> None:
    alloc = make(policy, merge=True, debug="F")
    made(alloc, "a")
    assert made(alloc, "b").aliases == ()


# ---- what they share -----------------------------------------------------------------------------


def test_slabs_counters_and_objects_are_shared(merging: us.Allocator) -> None:
    a, b = made(merging, "a"), made(merging, "b")
    before = b.stats(exact=True)
    address = a.alloc_address()
    assert b.live().tolist() == [address]
    assert (b.stats(exact=True) - before).allocs == 1
    b.free(address)
    assert a.stats(exact=True) == b.stats(exact=True)
    assert a.slabs().equals(b.slabs())
    assert dict(a.tunables) == dict(b.tunables)
    obj = a.alloc()
    assert obj.cache is a
    obj.free()
    assert balance_all(merging) == 0


def test_objects_are_as_large_as_the_larger(merging: us.Allocator) -> None:
    a = made(merging, "a", SIZE - 6)
    with a.alloc() as obj:
        assert obj.size == SIZE - 6
    b = made(merging, "b", SIZE - 2)
    assert a.size == b.size == SIZE - 2
    address = a.alloc_address(zero=True)
    assert us.raw.peek(address, SIZE - 2) == bytes(SIZE - 2)
    a.free(address)


# ---- names ---------------------------------------------------------------------------------------


def test_a_cache_is_found_by_each_name_and_counted_once(merging: us.Allocator) -> None:
    count = len(merging.caches)
    a, b, c = (made(merging, name) for name in "abc")
    assert (a.name, b.name, c.name) == ("a", "b", "c")
    assert merging.cache("b") is b
    assert b.aliases == ("a", "c")
    assert len(merging.caches) == count + 1
    assert merging.caches["a"] is a
    for name in "abc":
        with pytest.raises(ValueError, match=f"there is a cache '{name}' already"):
            made(merging, name)
    assert repr(b).startswith("<Cache 'b': ")


def test_names_are_given_up_one_by_one(merging: us.Allocator) -> None:
    a, b, c = (made(merging, name) for name in "abc")
    address = b.alloc_address()
    b.destroy()  # whatever is live
    assert not b.alive
    assert (a.aliases, c.aliases) == (("c",), ("a",))
    with pytest.raises(ValueError, match="b"):
        merging.cache("b")
    a.destroy()  # the name it was made under
    assert c.aliases == ()
    assert merging.caches["c"] is c
    with pytest.raises(RuntimeError, match="destroyed"):
        a.alloc_address()
    with pytest.raises(us.LiveObjectsError, match="cache 'c' has 1 live"):
        c.destroy()
    c.free(address)
    # The names are free again.
    again = made(merging, "a")
    assert again.aliases == ("c",)
    c.destroy()
    assert again.aliases == ()
    again.destroy()
    assert "a" not in merging.caches
    assert merging.account()["reserved"] == 0


def test_a_handle_made_anew_knows_its_name(merging: us.Allocator) -> None:
    made(merging, "a")
    made(merging, "b")
    assert merging.cache("b").name == "b"
    assert merging.cache("a").aliases == ("b",)
    merging.cache("a").destroy()
    assert merging.cache("b").aliases == ()
    assert "b" in merging.caches


def test_slabinfo_shows_the_cache_and_its_aliases(merging: us.Allocator) -> None:
    a = made(merging, "first")
    made(merging, "second")
    made(merging, "third")
    frame = merging.slabinfo().set_index("name")
    assert frame.loc["first", "aliases"] == "second, third"
    assert "second" not in frame.index
    assert frame.loc["kmalloc-64", "aliases"] == ""
    assert sum(line.startswith("first ") for line in merging.slabinfo_text().splitlines()) == 1
    assert "second" not in merging.slabinfo_text()
    a.destroy()
    frame = merging.slabinfo().set_index("name")
    assert frame.loc["second", "aliases"] == "third"


def test_closing_ends_every_handle(merging: us.Allocator) -> None:
    a, b = made(merging, "a"), made(merging, "b")
    merging.close()
    assert not a.alive
    assert not b.alive


def test_names_come_and_go_in_threads(make: Make, policy: str) -> None:
    """Each thread has a name of its own for what is one cache now and then."""
    from rules.crowd import Crowd

    alloc = make(policy, merge=True)
    count = len(alloc.caches)

    def step(number: int) -> None:
        cache = made(alloc, f"of thread {number}")
        address = cache.alloc_address()
        assert address in cache.live().tolist()
        cache.free(address)
        assert cache.name not in cache.aliases
        cache.destroy()

    with Crowd(3, step):
        for _ in range(30):
            alloc.slabinfo()
            assert len(alloc.caches) <= count + 1
    assert len(alloc.caches) == count


def test_a_workload_runs_on_merged_caches(make: Make, policy: str) -> None:
    from unislab import ops

    workload = us.Workload("merged")
    caches = [workload.add_cache("w1", SIZE), workload.add_cache("w2", SIZE - 3)]
    for cache in caches:
        workload.add_task(ops.alloc(cache, 0), ops.free(0))
    alloc = make(policy, merge=True)
    result = us.run(workload, allocator=alloc, min_time=0)
    assert alloc.cache("w1").aliases == ("w2",)
    assert sum(v for k, v in result.counters.items() if k.startswith("alloc_")) == 2
    assert balance_all(alloc) == 0
