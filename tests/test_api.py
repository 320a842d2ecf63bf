"""The Python API as users meet it: arguments, names, mappings, snapshots, texts."""

from __future__ import annotations

import inspect
import pickle
import threading
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pandas as pd
import pytest
from rules.machines import place

import unislab as us
from unislab.sizes import format_size

# ---- sizes and times ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("17", 17),
        ("17 B", 17),
        ("1kB", 1000),
        ("1 KiB", 1024),
        ("2 MB", 2 * 10**6),
        ("2 MiB", 2 * 2**20),
        ("1.5 GiB", 3 * 2**29),
        ("1 GB", 10**9),
        (" 1_000 B ", 1000),
        (4096, 4096),
        (np.uint32(8), 8),
    ],
)
def test_sizes(text: Any, size: int) -> None:
    assert us.parse_size(text) == size


@pytest.mark.parametrize("text", ["", "KiB", "-1", "1 XiB", "1 kib", "0.3 B", "1e3", "1 2"])
def test_texts_that_are_no_size(text: str) -> None:
    with pytest.raises(ValueError, match=r"expected|whole"):
        us.parse_size(text)


@pytest.mark.parametrize(("size", "error"), [(-1, ValueError), (1.5, TypeError), (None, TypeError)])
def test_values_that_are_no_size(size: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        us.parse_size(size)


@pytest.mark.parametrize(
    ("text", "nanoseconds"),
    [
        ("10 ms", 10**7),
        ("0.5 s", 5 * 10**8),
        ("3 us", 3000),
        ("7ns", 7),
        ("1 min", 60 * 10**9),
        (2, 2 * 10**9),
    ],
)
def test_times(text: Any, nanoseconds: int) -> None:
    assert us.parse_time(text) == nanoseconds


@pytest.mark.parametrize("time", ["soon", "1 h", -1, float("nan"), float("inf")])
def test_what_is_no_time(time: Any) -> None:
    with pytest.raises(ValueError, match="expected"):
        us.parse_time(time)


@pytest.mark.parametrize("size", [0, 1023, 1024, 5 * 2**20, 2**40])
def test_formatted_sizes_read_back(size: int) -> None:
    assert us.parse_size(format_size(size)) == size


# ---- allocators --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "error", "said"),
    [
        ({"policy": "unifeid"}, ValueError, "unified"),
        ({"policy": "no such thing at all"}, ValueError, "unified"),
        ({"policy": 3}, TypeError, "policy"),
        ({"memory": 0}, ValueError, "memory"),
        ({"memory": "lots"}, ValueError, "lots"),
        ({"machine": "big"}, TypeError, "Machine"),
        ({"topology": [0, 1]}, TypeError, "Topology"),
        ({"seed": -1}, ValueError, "seed"),
        ({"debug": "X"}, ValueError, "'F'"),
        ({"debug": True}, TypeError, "'F'"),
        ({"purge_delay": "now"}, ValueError, "now"),
        ({"cpu_queue_sise": 5}, ValueError, "cpu_queue_size"),
        ({"cpu_queue_size": 3}, ValueError, "4 to 10000"),
        ({"cpu_queue_size": [5]}, TypeError, "cpu_queue_size"),
    ],
)
def test_arguments_of_an_allocator(
    arguments: dict[str, Any], error: type[Exception], said: str
) -> None:
    with pytest.raises(error, match=said):
        us.Allocator(**arguments)


def test_a_machine_has_its_topology() -> None:
    machine = us.Machine.grid(1, 1, 1)
    with pytest.raises(ValueError, match="not both"):
        us.Allocator(machine=machine, topology=machine.topology)


def test_one_class_whatever_the_machine(opened: us.Allocator) -> None:
    cache = opened.create_cache("pair", 16)
    with cache.alloc() as obj:
        assert isinstance(opened, us.Allocator)
        assert isinstance(cache, us.Cache)
        assert isinstance(obj, us.Object)
        assert obj.cache is cache
        assert cache.allocator is opened


@pytest.mark.parametrize("machine", [None, us.Machine.grid(1, 1, 1)])
def test_allocators_can_be_subclassed(machine: us.Machine | None) -> None:
    class Mine(us.Allocator):
        def hello(self) -> str:
            return f"hello {self.policy}"

    with Mine("slub", machine=machine) as alloc:
        assert isinstance(alloc, Mine)
        assert alloc.hello() == "hello slub"
        assert alloc.create_cache("pair", 16).allocator is alloc


def test_caches_and_objects_are_made_by_their_owners(opened: us.Allocator) -> None:
    cache = opened.create_cache("pair", 16)
    for cls in (us.Cache, us.Object, type(cache)):
        with pytest.raises(TypeError):
            cls()


def test_both_modules_offer_one_api() -> None:
    from unislab import _model, _native

    for name in ("Allocator", "Cache", "Object", "Sheaf"):
        assert set(dir(getattr(_native, name))) == set(dir(getattr(_model, name)))
    assert {n for n in dir(_native) if n[:2] != "__"} == {n for n in dir(_model) if n[:2] != "__"}


def test_methods_show_signature_and_documentation(opened: us.Allocator) -> None:
    cache = opened.create_cache("pair", 16)
    for owner in (opened, cache):
        for name, member in inspect.getmembers(owner, callable):
            if name.startswith("_"):
                continue
            assert inspect.getdoc(member), name
            inspect.signature(member)
    assert list(inspect.signature(cache.alloc).parameters) == ["node", "zero", "thisnode"]
    assert "Parameters" in (inspect.getdoc(cache.alloc) or "")


def test_a_closed_allocator_refuses(opened: us.Allocator) -> None:
    cache = opened.create_cache("pair", 16)
    opened.close()
    opened.close()
    assert opened.closed
    assert not cache.alive
    assert cache.name == "pair"
    assert opened.policy in us.policies()
    calls: list[Callable[[], object]] = [
        lambda: opened.create_cache("other", 16),
        lambda: opened.kmalloc(8),
        lambda: opened.kfree(8),
        lambda: opened.caches,
        lambda: opened.stats(),
        lambda: opened.account(),
        lambda: opened.expire(),
        lambda: opened.cpu,
        cache.alloc,
        cache.alloc_address,
        lambda: cache.free(0),
        lambda: cache.alloc_bulk(1),
        lambda: cache.free_bulk([1]),
        cache.stats,
        cache.validate,
        cache.shrink,
        cache.destroy,
        lambda: list(cache.tunables),
    ]
    for call in calls:
        with pytest.raises(RuntimeError, match=r"closed|destroyed"):
            call()
    assert "closed" in repr(opened)
    assert "destroyed" in repr(cache)


def test_a_destroyed_cache_refuses_and_its_name_is_free_again(opened: us.Allocator) -> None:
    first = opened.create_cache("pair", 16)
    first.destroy()
    with pytest.raises(RuntimeError, match="destroyed"):
        first.alloc_address()
    with pytest.raises(RuntimeError, match="destroyed"):
        first.destroy()
    second = opened.create_cache("pair", 32)
    assert opened.cache("pair") is second
    assert (first.size, second.size) == (16, 32)


def test_general_caches_stay(opened: us.Allocator) -> None:
    with pytest.raises(ValueError, match="general"):
        opened.cache("kmalloc-64").destroy()
    with pytest.raises(TypeError, match="kmalloc"):
        opened.cache("kmalloc-large").alloc()
    with pytest.raises(TypeError, match="kmalloc"):
        opened.cache("kmalloc-large").alloc_bulk(2)


def test_a_cache_has_one_handle_while_one_is_held(opened: us.Allocator) -> None:
    cache = opened.create_cache("pair", 16)
    assert opened.caches["pair"] is cache
    assert opened.cache("pair") is cache
    del cache
    assert opened.cache("pair").size == 16


def test_unknown_names_suggest_the_nearest(opened: us.Allocator) -> None:
    opened.create_cache("dentry", 192)
    with pytest.raises(us.UnknownNameError, match="dentry"):
        opened.cache("dentri")
    with pytest.raises(us.UnknownNameError, match="hwcache_align"):
        opened.create_cache("pair", 16, flags="hwcache_aling")
    with pytest.raises(us.UnknownNameError, match="alloc_fast"):
        opened.stats()["alloc_fats"]
    with pytest.raises(us.UnknownNameError, match="pages"):
        opened.fail("page")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({"name": 3, "size": 8}, TypeError),
        ({"name": "x", "size": -8}, ValueError),
        ({"name": "x", "size": 2**70}, ValueError),
        ({"name": "x", "size": 8, "align": -8}, ValueError),
        ({"name": "x", "size": 8, "align": 24}, ValueError),
        ({"name": "x", "size": 8, "constructor": b""}, ValueError),
        ({"name": "x", "size": 8, "constructor": 7}, TypeError),
        ({"name": "x", "size": 8, "constructor": bytes(9)}, ValueError),
        ({"name": "x", "size": 8, "debug": "Z"}, ValueError),
        ({"name": "a\0b", "size": 8}, ValueError),
    ],
)
def test_arguments_of_a_cache(
    opened: us.Allocator, arguments: dict[str, Any], error: type[Exception]
) -> None:
    before = set(opened.caches)
    with pytest.raises(error):
        opened.create_cache(**arguments)
    assert set(opened.caches) == before


def test_keywords_of_calls_are_checked(opened: us.Allocator) -> None:
    cache = opened.create_cache("pair", 16)
    for call in (cache.alloc, cache.alloc_address):
        with pytest.raises(TypeError, match="nod"):
            call(nod=0)  # type: ignore[call-arg]
        with pytest.raises(TypeError, match="positional"):
            call(0)  # type: ignore[call-arg]
        with pytest.raises(ValueError, match="node 9"):
            call(node=9)
    with pytest.raises(TypeError):
        cache.free()  # type: ignore[call-arg]
    with pytest.raises(TypeError):
        cache.free("0")  # type: ignore[arg-type]
    with pytest.raises(ValueError, match="-1"):
        cache.free(-1)
    with pytest.raises(ValueError, match="expected"):
        cache.free(2**64)
    with pytest.raises(TypeError):
        cache.alloc_bulk("3")  # type: ignore[arg-type]
    cache.free(0)


def test_an_object_is_not_freed_by_address(opened: us.Allocator) -> None:
    cache = opened.create_cache("pair", 16)
    with cache.alloc() as obj, pytest.raises(TypeError, match=r"object\.free"):
        cache.free(obj)  # type: ignore[arg-type]


def test_cache_facts(opened: us.Allocator) -> None:
    cache = opened.create_cache("aligned", "100 B", align=64, flags=["reclaim_account", "account"])
    assert (cache.size, cache.align, cache.stride) == (100, 64, 128)
    assert cache.flags == ("reclaim_account", "account")
    assert cache.policy == opened.policy
    assert cache.debug == opened.debug
    assert not cache.general
    assert cache.constructor is None
    assert cache.objects_per_slab >= 1


def test_ksize_of_what_is_not_there(opened: us.Allocator) -> None:
    with pytest.raises(us.CorruptionError) as caught:
        opened.ksize(4096)
    assert caught.value.address == 4096


# ---- tunables ----------------------------------------------------------------------------------


def test_tunables_are_a_mapping_and_attributes(make: Callable[..., us.Allocator]) -> None:
    tunables = make("unified").create_cache("pair", 16).tunables
    assert isinstance(tunables, Mapping)
    assert tunables["batch_size"] == tunables.batch_size
    tunables["batch_size"] = 12
    assert tunables.batch_size == 12
    tunables.update(cpu_queue_size=40, batch_size=16)
    assert tunables.batch_size == 16
    assert "batch_size" in dir(tunables)
    assert len(tunables) == len(list(tunables)) == len(tunables.describe())
    assert "batch_size=16" in repr(tunables)
    assert tunables.get("no_such", 3) == 3
    assert not hasattr(tunables, "no_such")
    assert "no_such" not in tunables
    with pytest.raises(TypeError, match="deleted"):
        del tunables["batch_size"]
    for assign in (1.5, None, [4]):
        with pytest.raises(TypeError, match="batch_size"):
            tunables["batch_size"] = assign  # type: ignore[assignment]
    assert tunables.batch_size == 16


def test_tunables_take_sizes_times_and_truth(make: Callable[..., us.Allocator]) -> None:
    tunables = make("unified").create_cache("pair", 16).tunables
    tunables.queue_budget = "64 KiB"
    assert tunables.queue_budget == 65536
    tunables.expire_period = "0.5 s"
    assert tunables.expire_period == 500
    tunables.sorted_drain = False
    assert tunables.sorted_drain == 0
    tunables.batch_size = np.int64(20)
    assert tunables.batch_size == 20


def test_tunables_with_words(make: Callable[..., us.Allocator]) -> None:
    cache = make("slub", epoch="2.6.25").create_cache("pair", 16)
    assert cache.tunables.epoch == "2.6.25"
    with pytest.raises(ValueError, match="creation"):
        cache.tunables.epoch = "2.6.32"


def test_tables_of_a_policy(policy: str) -> None:
    from unislab.inspect import policy_counters, policy_tunables

    assert {"name", "default", "min", "max", "unit", "readonly", "help"} <= set(
        policy_tunables(policy)
    )
    counters = policy_counters(policy)
    assert counters["common"].any()
    assert counters["help"].str.len().min() > 0
    with pytest.raises(ValueError, match=policy):
        policy_tunables(policy + "x")


# ---- statistics --------------------------------------------------------------------------------


def test_stats_are_a_frozen_mapping(opened: us.Allocator) -> None:
    cache = opened.create_cache("pair", 16)
    cache.free_bulk(cache.alloc_bulk(10))
    stats = cache.stats(exact=True)
    assert isinstance(stats, Mapping)
    assert stats["alloc_fast"] == stats.alloc_fast
    assert dict(stats) == {name: stats[name] for name in stats}
    assert stats == cache.stats(exact=True)
    assert "alloc_fast" in dir(stats)
    assert not hasattr(stats, "no_such")
    with pytest.raises(AttributeError, match="snapshot"):
        stats.alloc_fast = 3
    with pytest.raises((AttributeError, TypeError)):
        del stats.alloc_fast
    assert "allocs 10" in repr(stats)
    assert "\n" not in repr(stats)


def test_stats_subtract(opened: us.Allocator) -> None:
    cache = opened.create_cache("pair", 16)
    before, all_before = cache.stats(), opened.stats()
    cache.free_bulk(cache.alloc_bulk(25))
    change, all_change = cache.stats() - before, opened.stats() - all_before
    assert (change.allocs, change.frees) == (25, 25)
    assert (all_change.allocs, all_change.frees) == (25, 25)
    with pytest.raises(ValueError, match="subtract"):
        cache.stats() - opened.stats()
    with pytest.raises(TypeError):
        cache.stats() - 1


def test_stats_by_cpu(kind: str, make: Callable[..., us.Allocator]) -> None:
    machine = us.Machine.grid(1, 1, 3) if kind == "model" else None
    alloc = make("unified", machine=machine)
    cache = alloc.create_cache("pair", 16)
    cpu = alloc.topology.cpus - 1
    with alloc.on_cpu(cpu):
        cache.free(cache.alloc_address())
    per_cpu = cache.stats().per_cpu
    assert per_cpu.shape == (alloc.topology.cpus,)
    assert set(per_cpu.dtype.names or ()) == set(cache.stats())
    assert per_cpu["free_fast"].tolist() == [0] * cpu + [1]
    frame = cache.stats().to_frame(per_cpu=True)
    assert frame.columns.tolist() == ["counter", "cpu", "count"]
    sums = frame.groupby("counter")["count"].sum()
    assert sums.to_dict() == dict(cache.stats())


def test_stats_name_locks(opened: us.Allocator) -> None:
    stats = opened.stats()
    acquired = [name for name in stats if name.startswith("lock_acquired_")]
    assert {name.replace("acquired", "contended") for name in acquired} <= set(stats)
    assert all(stats[name] >= 0 for name in stats)


def test_stats_survive_pickling(opened: us.Allocator) -> None:
    stats = opened.create_cache("pair", 16).stats()
    again = pickle.loads(pickle.dumps(stats))
    assert again == stats
    assert (again - stats).allocs == 0


# ---- validation, tables, texts -----------------------------------------------------------------


def test_validation_of_all_caches_is_the_sum(opened: us.Allocator) -> None:
    first, second = opened.create_cache("first", 16), opened.create_cache("second", 32)
    addresses = first.alloc_bulk(3), second.alloc_bulk(4)
    whole = opened.validate()
    parts = whole.caches
    assert set(parts) == set(opened.caches)
    assert whole.ok
    for name in ("total", "available", "onqueue", "slabs"):
        assert getattr(whole, name) == sum(getattr(part, name) for part in parts.values())
    assert str(parts["first"]).startswith("Validation of slab first: total=")
    assert str(parts["second"]) in str(whole).splitlines()
    first.free_bulk(addresses[0])
    second.free_bulk(addresses[1])


def test_tables_have_typed_columns(opened: us.Allocator) -> None:
    cache = opened.create_cache("pair", 16)
    addresses = cache.alloc_bulk(5)
    slabs, queues, info = cache.slabs(), cache.queues(), opened.slabinfo()
    assert slabs["address"].dtype == np.uint64
    assert slabs["in_use"].sum() == 5
    assert pd.api.types.is_integer_dtype(queues["cpu"])
    assert all(len(row) == n for row, n in zip(queues["addresses"], queues["objects"], strict=True))
    # What lies in SLAB's arrays counts as active there.
    active = 5 + (int(queues["objects"].sum()) if opened.policy == "slab" else 0)
    assert info.loc[info["name"] == "pair", "active_objs"].tolist() == [active]
    cache.free_bulk(addresses)
    assert cache.slabs().columns.tolist() == slabs.columns.tolist()


def test_tables_of_an_unused_cache_are_empty_and_typed(opened: us.Allocator) -> None:
    cache = opened.create_cache("pair", 16)
    assert len(cache.slabs()) == 0
    assert cache.slabs()["address"].dtype == np.uint64
    assert cache.live().dtype == np.uint64


@pytest.mark.once
def test_slabinfo_of_slqb_has_its_watermark_and_batch(make: Callable[..., us.Allocator]) -> None:
    cache = make("slqb").create_cache("pair", 64)  # of 64 bytes: 1024 and 256
    row = cache.allocator.slabinfo().set_index("name").loc["pair"]
    assert row[["limit", "batchcount", "sharedfactor"]].tolist() == [1024, 256, 0]


def test_slabinfo_text_has_the_columns_of_the_kernel(opened: us.Allocator) -> None:
    lines = opened.slabinfo_text().splitlines()
    assert lines[0] == "slabinfo - version: 2.1"
    assert lines[1].split()[:3] == ["#", "name", "<active_objs>"]
    frame = opened.slabinfo()
    for line, (_, row) in zip(lines[2:], frame.iterrows(), strict=True):
        fields = line.replace(":", " ").split()
        numbers = [word for word in fields[1:] if word not in ("tunables", "slabdata")]
        assert fields[0] == row["name"]
        assert [int(n) for n in numbers] == row.tolist()[1:-1]  # the last: aliases


def test_texts_are_one_line(opened: us.Allocator) -> None:
    cache = opened.create_cache("pair", 16)
    with cache.alloc() as obj:
        things = [opened, cache, obj, cache.stats(), cache.validate(), cache.tunables]
        things += [opened.topology, us.Machine.grid(2, 1, 2)]
        for thing in things:
            text = repr(thing)
            assert text.startswith("<")
            assert "\n" not in text


# ---- time, place, failure ----------------------------------------------------------------------


def test_memory_policies_nest_and_end(make: Callable[..., us.Allocator]) -> None:
    alloc = make("unified", machine=us.Machine.grid(3, 1, 1))
    cache = alloc.create_cache("spread", 16, flags="mem_spread")

    def node() -> int:
        address = cache.alloc_address()
        slab = cache.slabs().query("in_use > 0")
        cache.free(address)
        return int(slab["node"].iloc[0])

    with alloc.memory_policy(preferred=2):
        assert node() == 2
        with alloc.memory_policy(preferred=1):
            assert node() == 1
        assert node() == 2
    assert node() == 0
    with alloc.memory_policy(interleave=[1, 2]):
        assert {node() for _ in range(4)} == {1, 2}


@pytest.mark.parametrize(
    ("arguments", "error"),
    [
        ({}, TypeError),
        ({"preferred": 0, "interleave": [0]}, TypeError),
        ({"preferred": 9}, ValueError),
        ({"interleave": []}, ValueError),
        ({"interleave": [0, 9]}, ValueError),
    ],
)
def test_memory_policies_that_cannot_be(
    opened: us.Allocator, arguments: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error), opened.memory_policy(**arguments):
        pass


def test_a_reaper_expires_what_nobody_touches(make: Callable[..., us.Allocator]) -> None:
    alloc = make("unified")
    cache = alloc.create_cache("pair", 16)
    cache.free_bulk(cache.alloc_bulk(1000))
    empty = threading.Event()
    with alloc.reaper("1 ms") as reaper:
        for _ in range(2000):
            if cache.account()["queued"] == 0:
                empty.set()
                break
            threading.Event().wait(0.005)
        assert "0.001 s" in repr(reaper)
    assert empty.is_set()
    reaper.stop()
    assert "stopped" in repr(reaper)
    with pytest.raises(ValueError, match="period"):
        alloc.reaper(0)


def test_a_reaper_is_ended_by_the_next_and_by_its_own_handle(
    make: Callable[..., us.Allocator], kind: str
) -> None:
    alloc = make(**place(kind))
    first = alloc.reaper("1 s")
    assert first.running
    second = alloc.reaper("2 s")
    assert (first.running, second.running) == (False, True)
    assert "stopped" in repr(first)
    first.stop()  # its own has ended: the other one goes on
    assert second.running
    second.stop()
    assert not second.running
    third = alloc.reaper("1 s")
    second.stop()
    assert third.running
    third.stop()


def test_a_reaper_outlives_nothing(policy: str) -> None:
    alloc = us.Allocator(policy)
    reaper = alloc.reaper("1 ms")
    alloc.close()
    reaper.stop()
    with pytest.raises(RuntimeError, match="closed"):
        alloc.reaper("1 ms")


def test_nested_on_cpu_returns(make: Callable[..., us.Allocator]) -> None:
    alloc = make("unified", machine=us.Machine.grid(1, 1, 4))
    with alloc.on_cpu(2):
        with alloc.on_cpu(3):
            assert alloc.cpu == 3
        assert alloc.cpu == 2
    assert alloc.cpu == 0
    with pytest.raises(ValueError, match="0 to 3"), alloc.on_cpu(4):
        pass


def test_an_injected_failure_is_no_limit(opened: us.Allocator) -> None:
    cache = opened.create_cache("pair", 16)
    opened.fail("pages", rate=1.0)
    with pytest.raises(MemoryError) as caught:
        cache.alloc()
    assert not isinstance(caught.value, us.LimitExceeded)
    opened.fail()
    cache.alloc().free()


def test_memory_info(opened: us.Allocator) -> None:
    info = opened.memory_info(0)
    assert 0 <= info["min"] <= info["low"] <= info["high"] <= info["managed"]
    with pytest.raises(ValueError, match="node 5"):
        opened.memory_info(5)


def test_the_build_says_what_it_is() -> None:
    from unislab import _model

    info = us.build_info()
    assert info["version"] == us.__version__
    assert info["mode"] in ("rseq", "slot")
    assert _model.build_info()["mode"] == "model"
    assert _model.build_info()["build_id"] == info["build_id"]
