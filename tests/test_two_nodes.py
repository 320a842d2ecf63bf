"""Alien paths: two nodes on a scripted machine with exact contents, and for real with threads.

On two nodes of two CPUs, objects of 64 bytes: slab of 64, queue 120, batch 60, alien queues of 126
(the queue's 16 + 8*120 bytes fill lines to 1024 bytes, less a header of 16, by 8), refilled up to
120.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest
from rules.books import balance_all, live_by_counters
from rules.inside import queues_of
from rules.machines import CPUS, declared
from rules.names import ALLOCS, FREES
from rules.scene import Scene

import unislab as us

Set = Callable[..., Scene]
both = pytest.mark.parametrize("debug", [None, "F"], ids=["plain", "F"])
once = pytest.mark.once

BATCH, ALIEN = 60, 126


# ---- allocation  ---------------------------------------------------------------------------------


@once
@both
def test_an_alien_allocation_fills_the_alien_queue_from_one_slab(
    scene: Set, debug: str | None
) -> None:
    s = scene(nodes=2, debug=debug)
    assert s.queue("alien", domain=0, node=1).capacity == ALIEN
    got = s.one(0, node=1)
    # Nothing queued, nothing partial: a new slab of node 1, min(64, min(126, 120) - 0) objects of
    # it.
    s.counted(alloc_alien_slow=1, alloc_alien=1, alloc_slab=1)
    assert s.alien(0, 1) == s.objects(got, 63, 1)
    assert s.partial(1) == []
    assert s.touched("alien", domain=0, node=1)
    assert s.cpu(0) == []
    # The others are pops of the alien queue, ascending.
    assert s.alloc(0, 63, node=1) == s.objects(got, 1, 63)
    s.counted(alloc_alien=63)
    # Other CPUs of the domain share it, the other domain's CPUs do not: for them node 1 is local.
    s.free(0, got)
    assert s.alien(0, 1) == [got]
    s.delta()
    assert s.one(1, node=1) == got
    s.counted(alloc_alien=1)


@once
@both
def test_an_alien_refill_takes_the_partial_slab_at_the_tail(scene: Set, debug: str | None) -> None:
    s = scene(nodes=2, debug=debug)
    got = s.alloc(2, 128)  # CPU 2 is on node 1: two slabs, all out
    a, b = got[:64], got[64:]
    for slab in (a, b):
        s.free(2, slab[:2])
        s.flush()
    assert s.partial(1) == [(b[0], 2), (a[0], 2)]
    s.delta()
    assert s.one(0, node=1) == a[0]
    s.counted(alloc_alien_slow=1, alloc_alien=1, alloc_from_partial=1)
    assert s.alien(0, 1) == [a[1]]
    assert s.partial(1) == [(b[0], 2)]  # a has none left: off the list


@once
@both
def test_what_an_alien_refill_leaves_goes_to_the_tail(scene: Set, debug: str | None) -> None:
    # 16 bytes: 256 objects a slab; the alien queue takes 120 of them.
    s = scene(16, nodes=2, debug=debug)
    first = s.alloc(2, 1)[0]
    s.delta()
    assert s.partial(1) == [(s.slab(first), 240)]
    # The only partial slab serves the alien refill as well and stays listed: 120 of 240.
    got = s.one(0, node=1)
    s.counted(alloc_alien_slow=1, alloc_alien=1, alloc_from_partial=1)
    assert len(s.alien(0, 1)) == 119
    assert s.partial(1) == [(s.slab(got), 120)]
    # The next 119 come from the queue, then 120 more use the slab up, then a new one joins.
    s.alloc(0, 119, node=1)
    s.one(0, node=1)
    assert s.partial(1) == []
    s.alloc(0, 119, node=1)
    s.delta()
    new = s.one(0, node=1)
    s.counted(alloc_alien_slow=1, alloc_alien=1, alloc_slab=1)
    assert s.partial(1) == [(s.slab(new), 136)]


@once
@both
def test_naming_the_own_node_is_a_local_allocation(scene: Set, debug: str | None) -> None:
    s = scene(nodes=2, debug=debug)
    s.alloc(2, 2, node=1)
    s.counted(alloc_slowpath=1, alloc_slab=1, alloc_fastpath=1)


@once
@both
def test_direct_allocation_takes_one_object(scene: Set, debug: str | None) -> None:
    s = scene(nodes=2, alien_queue_size=0, debug=debug)
    assert s.queue("alien", domain=0, node=1) is None
    got = s.one(0, node=1)
    # No alien queue: counted as alien-slow and direct; the slab has 63 left and is listed.
    s.counted(alloc_alien_slow=1, alloc_direct=1, alloc_slab=1)
    assert s.partial(1) == [(got, 63)]
    assert s.one(0, node=1) == got + 64
    s.counted(alloc_alien_slow=1, alloc_direct=1, alloc_from_partial=1)
    assert s.partial(1) == [(got, 62)]


@once
@both
def test_direct_free_goes_straight_to_the_slab(scene: Set, debug: str | None) -> None:
    s = scene(nodes=2, alien_queue_size=0, debug=debug)
    got = s.alloc(2, 64)
    s.flush()
    s.delta()
    s.free(0, got[9])
    s.counted(free_direct=1, free_add_partial=1)
    assert s.partial(1) == [(got[0], 1)]
    s.free(0, got[10])
    s.counted(free_direct=1)
    assert s.partial(1) == [(got[0], 2)]


@once
@both
def test_page_sized_objects_have_no_second_level(scene: Set, debug: str | None) -> None:
    s = scene(4096, nodes=2, debug=debug)
    got = s.one(0, node=1)
    s.counted(alloc_alien_slow=1, alloc_direct=1, alloc_slab=1)
    s.free(0, got)
    s.counted(free_direct=1)
    assert {queue.kind for queue in queues_of(s.cache)} <= {"cpu"}


# ---- free  ---------------------------------------------------------------------------------------


@once
@both
def test_an_alien_free_waits_in_the_alien_queue(scene: Set, debug: str | None) -> None:
    s = scene(nodes=2, debug=debug)
    got = s.alloc(2, 64)
    s.delta()
    s.free(0, got[:3])
    s.counted(free_alien=3)
    assert s.alien(0, 1) == got[:3]
    assert s.touched("alien", domain=0, node=1)
    assert s.cpu(0) == []


@once
@both
def test_a_full_alien_queue_drains_its_oldest_batch(scene: Set, debug: str | None) -> None:
    s = scene(nodes=2, debug=debug)
    got = s.alloc(2, 3 * 64)
    s.delta()
    s.free(0, got[:ALIEN])
    s.counted(free_alien=ALIEN)
    s.free(0, got[ALIEN])
    # 60 oldest, all of the first slab, which goes to the head of node 1's list.
    s.counted(free_alien_slow=1, free_add_partial=1)
    assert s.alien(0, 1) == got[BATCH : ALIEN + 1]
    assert s.partial(1) == [(got[0], 60)]
    assert not s.touched("alien", domain=0, node=1)
    s.free(0, got[ALIEN + 1])
    s.counted(free_alien=1)
    assert s.touched("alien", domain=0, node=1)


@once
@both
def test_touched_of_an_alien_queue(scene: Set, debug: str | None) -> None:
    s = scene(nodes=2, debug=debug)
    got = s.alloc(2, 64)

    def touched() -> bool:
        return s.touched("alien", domain=0, node=1)

    assert not touched()
    s.free(0, got[:2])
    assert touched()  # push without overflow
    s.expire()
    assert not touched()  # expiration visit
    s.one(0, node=1)
    assert touched()  # pop
    s.flush()
    assert not touched()  # drain


@once
@both
def test_frees_from_two_nodes_reach_two_queues(scene: Set, debug: str | None) -> None:
    # Three nodes of one CPU: each domain keeps a queue for each of the two other nodes.
    s = scene(nodes=3, cpus=1, debug=debug)
    one, two = s.one(1), s.one(2)
    s.delta()
    s.free(0, [one, two])
    s.counted(free_alien=2)
    assert (s.alien(0, 1), s.alien(0, 2)) == ([one], [two])
    aliens = [(q.domain, q.node) for q in queues_of(s.cache, kind="alien")]
    assert sorted(aliens) == [(0, 1), (0, 2), (1, 0), (1, 2), (2, 0), (2, 1)]


@once
@both
def test_flush_drains_alien_queues_last(scene: Set, debug: str | None) -> None:
    s = scene(nodes=2, debug=debug)
    theirs, ours = s.alloc(2, 64), s.alloc(0, 64)
    s.free(0, [theirs[0], ours[0]])
    s.delta()
    s.flush()
    # Four CPUs flushed; each slab got its object back on its own node.
    s.counted(queue_flush=4, free_add_partial=2)
    assert s.partial(1) == [(theirs[0], 1)]
    assert s.partial(0) == [(ours[0], 1)]
    assert s.alien(0, 1) == []


@once
def test_common_counters_of_alien_paths(scene: Set) -> None:
    s = scene(nodes=2)
    s.free(0, s.alloc(2, 128) + s.alloc(0, 3, node=1))
    stats = s.cache.stats(exact=True)
    # 128 local ones: 16, 48, 60, 4 per refill, so 4 slow and 124 fast.  3 alien ones: one alien-
    # slow that ends in an alien one, then two pops.  Frees: all 131 from the other node, the queue
    # holding what the refill left: 64 - 3 = 61 and then 65 more make it full; the 66th drains.
    assert {name: stats[name] for name in ALLOCS} == {
        "alloc_fast": 124,
        "alloc_second_level": 0,
        "alloc_slow": 4,
        "alloc_remote": 3,
    }
    assert {name: stats[name] for name in FREES} == {
        "free_fast": 0,
        "free_second_level": 0,
        "free_slow": 0,
        "free_remote": 131,
    }


# ---- placement  ----------------------------------------------------------------------------------


@once
def test_preferred_node_applies_to_spread_caches_only(make: Callable[..., us.Allocator]) -> None:
    from rules.machines import grid

    alloc = make(machine=grid(2, 1, 2))
    spread = alloc.create_cache("spread", 64, flags=["mem_spread"])
    plain = alloc.create_cache("plain", 64)
    with alloc.on_cpu(0), alloc.memory_policy(preferred=1):
        there, here, named = spread.alloc(), plain.alloc(), spread.alloc(node=0)
    assert spread.stats(exact=True)["alloc_alien"] == 1
    nodes = {row.address: row.node for row in spread.slabs().itertuples()}
    assert set(nodes.values()) == {0, 1}
    assert nodes[there.address] == 1
    assert nodes[named.address] == 0  # an explicit node goes before the task's policy
    assert [row.node for row in plain.slabs().itertuples()] == [0]
    with alloc.on_cpu(0):
        after = spread.alloc()  # the policy ended with its block
    assert spread.stats(exact=True)["alloc_fastpath"] == 1
    for one in (there, here, named, after):
        one.free()


@once
def test_interleave_turns_round_the_nodes(make: Callable[..., us.Allocator]) -> None:
    from rules.machines import grid

    alloc = make(machine=grid(4, 1, 1))
    spread = alloc.create_cache("spread", 64, flags=["mem_spread"])
    with alloc.on_cpu(0), alloc.memory_policy(interleave=[0, 2, 3]):
        got = [spread.alloc_address() for _ in range(9)]
    slab_node = {row.address: row.node for row in spread.slabs().itertuples()}
    nodes = [slab_node[address & ~4095] for address in got]
    assert sorted(nodes) == [0, 0, 0, 2, 2, 2, 3, 3, 3]
    assert nodes[:3] == nodes[3:6] == nodes[6:]  # per object, in turn
    with alloc.on_cpu(0):
        spread.free_bulk(got)


@once
def test_a_full_node_falls_back_to_another_unless_pinned(
    make: Callable[..., us.Allocator],
) -> None:
    from rules.machines import grid

    # Two nodes share 8 MiB evenly: 4 MiB each.
    alloc = make(machine=grid(2, 1, 1), memory="8 MiB")
    big = alloc.create_cache("big", 8192)
    got = []
    with alloc.on_cpu(0):
        with pytest.raises(MemoryError):
            while True:
                got.append(big.alloc_address(node=0, thisnode=True))
        assert {row.node for row in big.slabs().itertuples()} == {0}
        assert len(got) <= 4 * 1024 * 1024 // 8192
        other = big.alloc_address()  # without the pin node 1 helps
        assert {row.node for row in big.slabs().itertuples()} == {0, 1}
        # It is freed to its true node.
        big.free(other)
        big.free_bulk(got)
    assert balance_all(alloc) == 0


# ---- for real  -----------------------------------------------------------------------------------


@pytest.mark.skipif(len(CPUS) < 2, reason="needs two CPUs")
@pytest.mark.parametrize("debug", [None, "F"], ids=["plain", "F"])
@pytest.mark.parametrize("aliens", [None, 0], ids=["alien queues", "direct"])
def test_two_threads_free_each_others_objects(
    make: Callable[..., us.Allocator], debug: str | None, aliens: int | None
) -> None:
    """One node a CPU: each thread allocates on its own and frees what the other made."""
    alloc = make(topology=declared([0, 1]), debug=debug)
    tunables = {} if aliens is None else {"alien_queue_size": aliens}
    cache = alloc.create_cache("ping", 64, **tunables)
    rounds, batch = 40, 100
    boxes: list[list[list[int]]] = [[], []]
    ready = threading.Barrier(2)
    errors: list[BaseException] = []

    def work(me: int) -> None:
        try:
            with alloc.on_cpu(CPUS[me]):
                for _ in range(rounds):
                    got = [cache.alloc_address() for _ in range(batch)]
                    assert len(set(got)) == batch
                    boxes[me].append(got)
                    ready.wait(30)
                    for address in boxes[1 - me][-1]:
                        cache.free(address)
                    ready.wait(30)
        except BaseException as error:
            errors.append(error)
            ready.abort()

    threads = [threading.Thread(target=work, args=(me,)) for me in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)
    stats = cache.stats(exact=True)
    n = 2 * rounds * batch
    assert sum(stats[name] for name in ALLOCS) == n
    # Every object was freed on the other node: queued there, or put straight to its slab.
    assert stats["free_remote"] == n
    if aliens == 0:
        assert stats["free_direct"] == n
    else:
        assert stats["free_direct"] == 0
        assert stats["free_alien"] + stats["free_alien_slow"] == n
        assert stats["free_alien_slow"] > 0
    assert live_by_counters(stats) == 0
