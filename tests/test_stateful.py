"""Any order of calls: no address twice, contents kept, books balanced after every step."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from rules.books import balance
from rules.machines import CPUS, place

import unislab as us

pytestmark = pytest.mark.every_policy

SIZES = [24, 64, 700]
cpus = st.integers(0, 1)
which = st.integers(0, len(SIZES) - 1)
seeds = st.integers(0, 2**32)

RESIZES = {
    "unified": [
        ("cpu_queue_size", [4, 8, 60, 120, 500]),
        ("shared_queue_size", [0, 600, 2000]),
        ("batch_size", [4, 20, 60]),
        ("min_partial", [5, 10]),
    ],
    "slab": [("limit", [60, 120, 200]), ("batchcount", [10, 60]), ("shared", [0, 2, 8])],
    "slub": [("min_partial", [5, 10]), ("remote_node_defrag_ratio", [0, 50, 100])],
    "slub-thrash": [
        ("mode", ["off", "ratio", "mostfree"]),
        ("slab_thrash_ratio", [0, 25, 100]),
        ("remote_node_defrag_ratio", [0, 100]),
    ],
    "slub-partial": [
        ("min_partial", [5, 10]),
        ("cpu_partial", [0, 2, 30, 120]),
        ("remote_node_defrag_ratio", [0, 100]),
    ],
}


class AllocatorMachine(RuleBasedStateMachine):
    """Calls on two nodes of one CPU each, beside a dictionary of what must be live."""

    policy = "unified"
    kind = "model"
    debug: str | None = None

    @initialize()
    def open(self) -> None:
        self.alloc = us.Allocator(
            self.policy,
            debug=self.debug,
            address_range="1 GiB",
            memory="64 MiB",
            **place(self.kind, nodes=2, cpus=1),
        )
        self.caches = [self.alloc.create_cache(f"size-{size}", size) for size in SIZES]
        self.live: list[dict[int, bytes]] = [{} for _ in SIZES]
        self.blocks: dict[int, int] = {}

    def number(self, cpu: int) -> int:
        """The machine's number for one of the two CPUs."""
        return CPUS[cpu % len(CPUS)] if self.kind == "native" else cpu

    def on(self, cpu: int) -> Any:
        """On that CPU, or on the other one while it is offline."""
        number = self.number(cpu)
        online = self.alloc.cpus[number].online
        return self.alloc.on_cpu(number if online else self.number(cpu + 1 & 1))

    def remember(self, i: int, addresses: list[int], seed: int) -> None:
        rng = random.Random(seed)
        for address in addresses:
            assert address not in self.live[i], "handed out twice"
            word = rng.randbytes(16)
            us.raw.poke(address, word)
            self.live[i][address] = word

    def forget(self, i: int, address: int) -> None:
        assert us.raw.peek(address, 16) == self.live[i].pop(address), "contents changed"

    # -- rules ---------------------------------------------------------------------------------

    @rule(i=which, cpu=cpus, seed=seeds, zero=st.booleans(), node=st.sampled_from([None, 0, 1]))
    def allocate(self, i: int, cpu: int, seed: int, zero: bool, node: int | None) -> None:
        with self.on(cpu):
            address = self.caches[i].alloc_address(zero=zero, node=node)
        if zero:
            assert us.raw.peek(address, SIZES[i]) == bytes(SIZES[i])
        self.remember(i, [address], seed)

    @rule(
        i=which,
        cpu=cpus,
        seed=seeds,
        n=st.sampled_from([0, 1, 16, 63, 64, 65, 140, 400]),
        node=st.sampled_from([None, None, 0, 1]),
    )
    def allocate_bulk(self, i: int, cpu: int, seed: int, n: int, node: int | None) -> None:
        with self.on(cpu):
            got = self.caches[i].alloc_bulk(n, node=node)
        self.remember(i, [int(a) for a in got], seed)

    @rule(i=which, cpu=cpus, seed=seeds)
    def free(self, i: int, cpu: int, seed: int) -> None:
        if not self.live[i]:
            return
        address = random.Random(seed).choice(sorted(self.live[i]))
        self.forget(i, address)
        with self.on(cpu):
            self.caches[i].free(address)

    @rule(i=which, cpu=cpus, seed=seeds, share=st.sampled_from([0.1, 0.5, 0.9, 1.0]))
    def free_bulk(self, i: int, cpu: int, seed: int, share: float) -> None:
        rng = random.Random(seed)
        gone = rng.sample(sorted(self.live[i]), int(len(self.live[i]) * share))
        for address in gone:
            self.forget(i, address)
        with self.on(cpu):
            self.caches[i].free_bulk(gone)

    @rule(size=st.sampled_from([1, 100, 5000, 40_000]), cpu=cpus)
    def kmalloc(self, size: int, cpu: int) -> None:
        with self.on(cpu):
            address = self.alloc.kmalloc(size)
        assert address not in self.blocks
        assert self.alloc.ksize(address) >= size
        self.blocks[address] = size

    @rule(seed=seeds, cpu=cpus)
    def kfree(self, seed: int, cpu: int) -> None:
        if self.blocks:
            address = random.Random(seed).choice(sorted(self.blocks))
            del self.blocks[address]
            with self.on(cpu):
                self.alloc.kfree(address)

    @rule(node=st.sampled_from([None, 0, 1]))
    def expire(self, node: int | None) -> None:
        assert self.alloc.expire(node) >= 0

    @rule()
    def flush(self) -> None:
        self.alloc.flush()
        if self.alloc.policy == "sheaves":  # a flush leaves out the barn, a shrink does not
            self.alloc.shrink()
        assert all(cache.account()["queued"] == 0 for cache in self.caches)

    @rule(i=which)
    def shrink(self, i: int) -> None:
        reserved = self.caches[i].account()["reserved"]
        assert self.caches[i].shrink() >= 0
        assert self.caches[i].account()["reserved"] <= reserved
        if not self.live[i]:
            assert self.caches[i].account()["reserved"] == 0

    @rule(i=which, seed=seeds)
    def resize(self, i: int, seed: int) -> None:
        rng = random.Random(seed)
        name, values = rng.choice(RESIZES.get(self.policy, [("min_partial", [5, 10])]))
        # A batch above the queue, or a shared queue below the batch, is refused.
        with contextlib.suppress(ValueError, NotImplementedError):
            setattr(self.caches[i].tunables, name, rng.choice(values))

    @rule(seconds=st.sampled_from([0.001, 1, 10]))
    def advance(self, seconds: float) -> None:
        self.alloc.advance(seconds)

    @rule(cpu=cpus)
    def plug(self, cpu: int) -> None:
        """It comes back, or goes unless it is the only one of the two."""
        number, other = self.number(cpu), self.number(cpu + 1 & 1)
        if number not in self.alloc.online_cpus:
            self.alloc.online_cpu(number)
        elif number != other and other in self.alloc.online_cpus:
            self.alloc.offline_cpu(number)

    @rule(i=which)
    def remake(self, i: int) -> None:
        if not self.live[i]:
            self.caches[i].destroy()
            self.caches[i] = self.alloc.create_cache(f"size-{SIZES[i]}", SIZES[i])

    @rule(i=which)
    def misuse(self, i: int) -> None:
        """A wrong address is refused and leaves nothing behind."""
        for wrong in [0x10, *(address + 1 for address in sorted(self.live[i])[:1])]:
            with pytest.raises(us.CorruptionError):
                self.caches[i].free(wrong)

    # -- what always holds ---------------------------------------------------------------------

    @invariant()
    def books(self) -> None:
        if not hasattr(self, "alloc"):
            return
        for cache, live in zip(self.caches, self.live, strict=True):
            assert balance(cache) == len(live)
            assert sorted(cache.live().tolist()) == sorted(live)
        whole = self.alloc.account()
        parts = ("live", "queued", "free_in_slabs", "waste")
        assert whole["reserved"] == sum(whole[part] for part in parts)

    def teardown(self) -> None:
        if hasattr(self, "alloc"):
            for i, live in enumerate(self.live):
                for address in list(live):
                    self.forget(i, address)
            self.alloc.close(force=True)


def test_any_order_of_calls(policy: str, kind: str, debug: str | None) -> None:
    machine = type(
        f"Machine_{policy}_{kind}_{debug}",
        (AllocatorMachine,),
        {"policy": policy, "kind": kind, "debug": debug},
    )
    profile = settings.default
    examples = max(3, profile.max_examples // 2)
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine, settings=settings(profile, max_examples=examples, stateful_step_count=25)
    )
