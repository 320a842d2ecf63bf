"""Sizes as published, limits, and live resizing of every queue."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import pytest
from rules.books import balance
from rules.inside import queues_of
from rules.machines import grid, place
from rules.scene import Scene

import unislab as us
from unislab.inspect import policy_tunables

Set = Callable[..., Scene]
once = pytest.mark.once


def capacity(cache: us.Cache, kind: str, **which: int) -> int | None:
    """Real capacity of a queue; None where there is none."""
    found = queues_of(cache, kind=kind, **which)
    return found[0].capacity if found else None


# ---- sizes (the tables of 2.3)  ------------------------------------------------------------------


@once
@pytest.mark.parametrize(
    ("size", "queue", "batch", "real", "shared"),
    # Shared, on one node: 16 + 8 * 10 * batch bytes, up to 2048 rounded to a general size, else to
    # pages: 4816 -> 8192, 2176 -> 4096, 976 -> 1024; (bytes - 16) / 8 entries.
    [
        (8, 120, 60, 125, 1022),
        (64, 120, 60, 125, 1022),
        (256, 120, 60, 125, 1022),
        (257, 54, 27, 61, 510),
        (1024, 54, 27, 61, 510),
        (1025, 24, 12, 29, 126),
        (4088, 24, 12, 29, 126),
        (4096, 24, 12, 29, None),
        (4097, 8, 4, 13, None),
        (20000, 8, 4, 13, None),
    ],
)
def test_queues_by_object_size(
    scene: Set, size: int, queue: int, batch: int, real: int, shared: int | None
) -> None:
    s = scene(size)
    s.free(0, s.one(0))
    tunables = s.cache.tunables
    assert tunables.queue_size == queue
    assert tunables.batch_size == batch
    assert tunables.cpu_queue_size == real
    assert capacity(s.cache, "cpu", cpu=0) == real
    assert capacity(s.cache, "shared") == shared
    assert tunables.shared_queue_size == (shared or 0)


@once
def test_lowmem_caches_are_small(scene: Set) -> None:
    s = scene(64, nodes=2, flags=("lowmem",))
    s.free(0, s.alloc(0, 20))
    assert s.cache.tunables.queue_size == 5
    assert s.cache.tunables.batch_size == 3
    assert s.cache.tunables.min_partial == 0  # the clamp to 5..10 is by-passed
    assert {queue.kind for queue in queues_of(s.cache)} == {"cpu"}
    assert capacity(s.cache, "cpu", cpu=0) == 5
    # 20 frees: 5 fit, then every third drains 3 to slabs.
    assert len(s.cpu(0)) <= 5
    s.flush()
    # min_partial 0: an empty slab stays only while the list is empty otherwise.
    assert len(s.partial()) <= 1


@once
@pytest.mark.parametrize(
    ("nodes", "expected"),
    [
        (2, {8: 14, 24: 30, 54: 62, 120: 126}),
        (4, {8: 14, 24: 30, 54: 62, 120: 126}),
        (5, {8: 14, 24: 30, 54: 30, 120: 30}),
        (8, {8: 14, 24: 30, 54: 30, 120: 30}),
        (32, {8: 14, 24: 30, 54: 30, 120: 30}),
        (33, {8: 6, 24: 6, 54: 6, 120: 6}),
    ],
)
def test_alien_queues_by_number_of_nodes(scene: Set, nodes: int, expected: dict[int, int]) -> None:
    s = scene(64, nodes=nodes, cpus=1)
    for queue, entries in expected.items():
        cache = s.allocator.create_cache(f"queue-{queue}", 64, cpu_queue_size=queue)
        assert cache.tunables.queue_size == queue
        assert capacity(cache, "alien", domain=0, node=1) == entries
        assert capacity(cache, "alien", domain=0, node=0) is None  # no slot for the own node
        assert capacity(cache, "alien", domain=nodes - 1, node=0) == entries


@once
def test_the_published_example_of_a_shared_queue(scene: Set) -> None:
    # 64 CPUs, 4 nodes, 64 bytes: one block of 8 KiB, 3 alien queues of 1 KiB, 638 entries shared;
    # in one queue, as it was published.
    s = scene(64, nodes=4, cpus=16, shard_cpus=0)
    assert capacity(s.cache, "shared", domain=0) == 638
    assert [capacity(s.cache, "alien", domain=0, node=n) for n in (1, 2, 3)] == [126] * 3


@once
@pytest.mark.parametrize(
    ("size", "expected"), [(8, 5), (32, 5), (64, 6), (256, 8), (1024, 10), (4096, 10), (65536, 10)]
)
def test_min_partial_is_log2_of_the_size(
    make: Callable[..., us.Allocator], policy: str, size: int, expected: int
) -> None:
    cache = make(policy, machine=grid(1, 1, 2)).create_cache("sized", size)
    if "min_partial" not in cache.tunables:
        pytest.skip("the policy keeps no empty slabs by number")
    if policy in ("slub-partial", "sheaves"):  # half of it since the CPUs have more of their own
        expected = min(max((size.bit_length() - 1) // 2, 5), 10)
    assert cache.tunables.min_partial == expected


# Order and objects a slab: the table of known answers, 4 KiB pages, max_order 3.
ORDERS = {
    64: [(0, 64)] * 8,
    96: [(0, 42)] * 7 + [(1, 85)],
    128: [(0, 32)] * 6 + [(1, 64)] * 2,
    192: [(0, 21)] * 4 + [(1, 42)] * 3 + [(2, 85)],
    256: [(0, 16)] * 3 + [(1, 32)] * 3 + [(2, 64)] * 2,
    320: [(0, 12)] * 2 + [(1, 25)] * 3 + [(2, 51)] * 3,
    512: [(0, 8)] + [(1, 16)] * 2 + [(2, 32)] * 3 + [(3, 64)] * 2,
    700: [(1, 11)] + [(2, 23)] * 3 + [(3, 46)] * 4,
    1024: [(1, 8)] + [(2, 16)] * 2 + [(3, 32)] * 5,
    1088: [(2, 15)] * 2 + [(3, 30)] * 6,
    1216: [(2, 13)] * 2 + [(3, 26)] * 6,
    2048: [(2, 8)] + [(3, 16)] * 7,
    2368: [(3, 13)] * 8,
    3072: [(3, 10)] * 8,
    4096: [(3, 8)] * 8,
    8192: [(3, 4)] * 8,
}
ORDER_CPUS = [1, 2, 4, 8, 16, 64, 256, 1024]


@once
@pytest.mark.parametrize("cpus", ORDER_CPUS)
def test_slab_order(make: Callable[..., us.Allocator], policy: str, cpus: int) -> None:
    alloc = make(policy, machine=grid(1, 1, cpus))
    column = ORDER_CPUS.index(cpus)
    if "max_order" not in alloc.create_cache("any", 64).tunables:
        pytest.skip("the policy has another rule for orders")
    for size, answers in ORDERS.items():
        cache = alloc.create_cache(f"size-{size}", size)
        assert (cache.order, cache.objects_per_slab) == answers[column], size
        cache.destroy()


@once
def test_slabs_of_more_than_65535_objects(make: Callable[..., us.Allocator]) -> None:
    # 1 MiB of 8-byte objects: 131072, which 16 bits cannot count.
    alloc = make(machine=grid(1, 1, 2))
    cache = alloc.create_cache("tiny", 8, min_objects=131072, max_order=8)
    assert (cache.order, cache.objects_per_slab) == (8, 131072)
    got = cache.alloc_bulk(100_000)
    assert len(set(got.tolist())) == 100_000
    table = cache.slabs()
    assert list(table["objects"]) == [131072]
    assert int(table["free"].iloc[0]) + int(table["queued"].iloc[0]) == 31072
    balance(cache)
    cache.free_bulk(got)
    cache.shrink()
    assert len(cache.slabs()) == 0


# ---- limits  -------------------------------------------------------------------------------------


@once
@pytest.mark.parametrize(
    ("name", "low", "high", "allowed"),
    [
        ("cpu_queue_size", 3, 10001, (4, 10000)),
        ("batch_size", 3, 121, (4, 120)),
        ("shared_queue_size", 3, 10001, (0, 10000)),
        ("alien_queue_size", -1, 1001, (0, 1000)),
        ("min_partial", 4, 11, (5, 10)),
    ],
)
def test_values_out_of_range_are_refused_and_nothing_changes(
    scene: Set, name: str, low: int, high: int, allowed: tuple[int, int]
) -> None:
    s = scene(nodes=2)
    before = dict(s.cache.tunables)
    for value in (low, high):
        with pytest.raises(ValueError, match=str(value)) as error:
            setattr(s.cache.tunables, name, value)
        if value == high:
            assert str(allowed[1]) in str(error.value)
    assert dict(s.cache.tunables) == before


@once
def test_a_shared_queue_holds_at_least_a_batch(scene: Set) -> None:
    s = scene()
    with pytest.raises(ValueError, match="59"):
        s.cache.tunables.shared_queue_size = 59
    s.cache.tunables.shared_queue_size = 60


@once
def test_alien_queues_need_a_second_node(scene: Set) -> None:
    s = scene()
    with pytest.raises(NotImplementedError, match="node"):
        s.cache.tunables.alien_queue_size = 30


@once
def test_unknown_names_suggest_the_nearest(make: Callable[..., us.Allocator], policy: str) -> None:
    alloc = make(policy, machine=grid(1, 1, 2))
    cache = alloc.create_cache("named", 64)
    meant = "min_partial" if "min_partial" in cache.tunables else next(iter(cache.tunables))
    wrong = f"{meant[:-2]}{meant[:-3:-1]}"  # the last two letters swapped
    for attempt in (
        lambda: setattr(cache.tunables, wrong, 5),
        lambda: alloc.create_cache("other", 64, **{wrong: 5}),
        lambda: us.Allocator(policy, **{wrong: 5}),
    ):
        with pytest.raises((ValueError, TypeError, AttributeError), match=meant):
            attempt()
    with pytest.raises(ValueError, match="unified"):
        us.Allocator("unifeid")
    assert "other" not in alloc.caches


@once
def test_an_unknown_name_far_from_all_others_lists_all(
    make: Callable[..., us.Allocator], policy: str
) -> None:
    with pytest.raises(ValueError) as error:
        make(policy, frobnication=5)
    assert str(error.value).endswith(", ".join(policy_tunables(policy)["name"]))
    with pytest.raises(ValueError) as error:
        us.Allocator("frobnicator")
    assert str(error.value).endswith(f"known are {', '.join(us.policies())}")


@once
def test_what_has_a_word_for_each_number_expects_words(
    make: Callable[..., us.Allocator], policy: str
) -> None:
    """Codes such as 0 to 2 of a mode say nothing to a reader; other ranges stay."""
    for row in policy_tunables(policy).to_dict("records"):
        if row["readonly"] or pd.isna(row["max"]):
            continue
        with pytest.raises(ValueError) as error:
            make(policy, **{row["name"]: "much"})
        low, high = row["min"], row["max"]
        numbers = f"{low} to {high}" if low < high else f"{low}"
        words = ", ".join(map(repr, row["choices"]))
        named = bool(words) and len(row["choices"]) == high - low + 1
        assert (words in str(error.value)) and ((numbers in str(error.value)) != named)


@once
def test_read_only_rows_cannot_be_set(scene: Set) -> None:
    s = scene()
    for name in ("queue_size", "per_cpu_caches", "shared_caches"):
        with pytest.raises((ValueError, AttributeError), match=name):
            setattr(s.cache.tunables, name, 10)


@once
def test_describe_lists_every_row(make: Callable[..., us.Allocator], policy: str) -> None:
    alloc = make(policy, machine=grid(1, 1, 2))
    cache = alloc.create_cache("described", 64)
    table = cache.tunables.describe()
    assert {"name", "value", "default", "min", "max", "unit", "readonly", "help"} <= {
        *table.columns,
        table.index.name,
    }
    names = set(table["name"]) if "name" in table.columns else set(table.index)
    assert names == set(cache.tunables)
    assert names
    if policy == "unified":
        assert names >= {
            "cpu_queue_size",
            "queue_size",
            "batch_size",
            "per_cpu_caches",
            "shared_queue_size",
            "shared_caches",
            "alien_queue_size",
            "alien_caches",
            "expire",
            "min_partial",
        }


@once
def test_allocator_keywords_are_defaults_of_every_cache(
    make: Callable[..., us.Allocator],
) -> None:
    alloc = make(machine=grid(1, 1, 2), cpu_queue_size=20)
    for cache in (alloc.create_cache("made", 64), alloc.cache("kmalloc-64")):
        assert cache.tunables.queue_size == 20
        assert cache.tunables.batch_size == 10
    own = alloc.create_cache("own", 64, cpu_queue_size=40)
    assert own.tunables.queue_size == 40


# ---- live resizing  ------------------------------------------------------------------------------


@once
@pytest.mark.parametrize("debug", [None, "F"], ids=["plain", "F"])
@pytest.mark.parametrize(
    ("asked", "batch", "real"),
    # (queue + 1) / 2, and 8 * queue + 24 bytes rounded up to lines of 64, less 24, by 8.
    [(8, 4, 13), (60, 30, 61), (4, 2, 5), (1000, 500, 1005)],
)
def test_resizing_cpu_queues_live(
    scene: Set, debug: str | None, asked: int, batch: int, real: int
) -> None:
    s = scene(debug=debug)
    mine, others = s.alloc(0, 120), s.alloc(1, 120)
    s.free(0, mine)
    s.free(1, others[:50])
    s.cache.tunables.cpu_queue_size = asked
    tunables = s.cache.tunables
    assert (tunables.queue_size, tunables.batch_size, tunables.cpu_queue_size) == (
        asked,
        batch,
        real,
    )
    for cpu in (0, 1):
        assert len(s.cpu(cpu)) <= real
    assert balance(s.cache) == 70
    assert sorted(s.cache.live().tolist()) == sorted(others[50:])
    # It works at its new size.
    more = s.alloc(0, 2 * real + 200)
    s.free(0, more)
    row = s.queue("cpu", cpu=0)
    assert row.capacity == real
    assert row.objects <= real
    balance(s.cache)


@once
@pytest.mark.parametrize("debug", [None, "F"], ids=["plain", "F"])
def test_resizing_the_shared_queue_live(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    got = s.alloc(0, 320)
    s.free(0, got[:186])
    assert s.shared() == got[:120]
    s.cache.tunables.shared_queue_size = 64  # 528 bytes -> 1024: 126 entries
    assert s.cache.tunables.shared_queue_size == 126
    assert capacity(s.cache, "shared", domain=0) == 126
    balance(s.cache)
    s.cache.tunables.shared_queue_size = 0
    assert s.queue("shared", domain=0) is None
    queued = s.cpu(0)
    balance(s.cache)
    s.free(0, got[186:])  # 134 more: overflows go to slabs
    assert s.cache.stats(exact=True)["free_slowpath"] > 0
    assert len(s.cpu(0)) <= 125
    assert queued
    s.cache.tunables.shared_queue_size = 600
    assert capacity(s.cache, "shared", domain=0) == 1022


@once
@pytest.mark.parametrize("debug", [None, "F"], ids=["plain", "F"])
@pytest.mark.parametrize(("asked", "real"), [(10, 14), (1000, 1022), (14, 14), (15, 30)])
def test_resizing_alien_queues_live(scene: Set, debug: str | None, asked: int, real: int) -> None:
    # 16 + 8 * asked bytes, to lines of 64, to a power of two; less 16, by 8.
    s = scene(nodes=2, debug=debug)
    theirs = s.alloc(2, 100)
    s.free(0, theirs)
    assert s.alien(0, 1) == theirs
    s.cache.tunables.alien_queue_size = asked
    assert s.cache.tunables.alien_queue_size == real
    assert capacity(s.cache, "alien", domain=0, node=1) == real
    balance(s.cache)
    s.cache.tunables.alien_queue_size = 0
    assert s.queue("alien", domain=0, node=1) is None
    assert s.queue("shared", domain=0) is not None
    balance(s.cache)
    s.delta()
    s.free(0, s.one(0, node=1))
    moved = s.delta()
    assert (moved["alloc_direct"], moved["free_direct"]) == (1, 1)


@once
def test_without_a_shared_queue_there_are_no_alien_queues(scene: Set) -> None:
    s = scene(nodes=2, shared_queue_size=0)
    s.free(0, s.one(0))
    assert {queue.kind for queue in queues_of(s.cache)} == {"cpu"}
    s.delta()
    s.one(0, node=1)
    s.counted(alloc_alien_slow=1, alloc_direct=1, alloc_slab=1)


@once
@pytest.mark.parametrize("debug", [None, "F"], ids=["plain", "F"])
def test_the_batch_size_works_at_once(scene: Set, debug: str | None) -> None:
    s = scene(debug=debug)
    s.cache.tunables.batch_size = 10
    got = s.one(0)
    assert s.cpu(0) == s.objects(got, 9, 1)  # 10 is below the 16 of an untouched queue
    # 6 * 10 and the slab's last 4 a slab: after 192 of them the queue is empty.
    objects = [got, *s.alloc(0, 191)]
    assert s.cpu(0) == []
    s.delta()
    s.free(0, objects[:126])
    s.counted(free_fastpath=125, free_shared=1)
    assert s.shared() == objects[:10]
    # The largest is the queue: 120.
    s.cache.tunables.batch_size = 120
    with pytest.raises(ValueError, match="121"):
        s.cache.tunables.batch_size = 121


@pytest.mark.parametrize("nodes", [1, 2])
@pytest.mark.parametrize("kind", ["native", "model"])
def test_the_largest_sizes_work(make: Callable[..., us.Allocator], kind: str, nodes: int) -> None:
    """A batch is as large as the largest queue: every path that moves one has room for it."""
    alloc = make("unified", **place(kind, nodes, 1))
    cache = alloc.create_cache("small", 8, cpu_queue_size=10000)
    cache.tunables.batch_size = 10000
    cache.tunables.shared_queue_size = 10000
    if nodes == 2:
        cache.tunables.alien_queue_size = 1000
    for eager in (0, 1):
        cache.tunables.eager_refill = eager
        for node in (None, nodes - 1):
            addresses = cache.alloc_bulk(30000, node=node)
            cache.free_bulk(addresses[::2])  # every slab is partial now
            alloc.flush()
            more = [cache.alloc_address(node=node) for _ in range(3)]  # touched: a whole batch
            cache.free_bulk(addresses[1::2])
            cache.free_bulk(more)
            idle = 0
            while idle < 2:
                idle = 0 if cache.expire() else idle + 1
    assert cache.validate().ok


@once
def test_min_partial_decides_what_is_kept(scene: Set) -> None:
    s = scene()
    s.cache.tunables.min_partial = 5
    got = s.alloc(0, 64 * 12)
    for i in range(12):
        s.free(0, got[i * 64 : i * 64 + 64])
        s.flush()
    assert [free for _, free in s.partial()] == [64] * 6


@once
def test_read_only_rows_follow_the_queues(scene: Set) -> None:
    s = scene(nodes=2)
    theirs, ours = s.alloc(2, 64), s.alloc(0, 192)
    s.free(0, theirs[:5])
    s.free(0, ours[:126])
    tunables = s.cache.tunables
    assert tunables.alien_caches == 5
    assert tunables.shared_caches == len(s.shared(0)) == 60
    assert tunables.per_cpu_caches == len(s.cpu(0)) == 66
    moved = s.expire()
    assert tunables.expire == moved
