"""The binding itself: references, threads, interpreters, buffers, the end of a process."""

from __future__ import annotations

import array
import gc
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import unislab as us
from unislab import _model, _native


def in_child(source: str, *options: str, timeout: float = 120) -> str:
    """Standard output of a Python program; it must end well and say nothing on standard error."""
    command = [sys.executable, "-X", "faulthandler", *options, "-c", textwrap.dedent(source)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=timeout)
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return done.stdout


# ---- references --------------------------------------------------------------------------------

LEAKS = """
import gc, sys
import unislab as us

machine = us.Machine.grid(1, 1, 1) if {model} else None
alloc = us.Allocator({policy!r}, machine=machine)
cache = alloc.create_cache("kept", 64)
obj = cache.alloc()
types = [type(alloc), type(cache), type(obj), type(cache._live())]
constructor = lambda view: None

def work(n):
    for i in range(n):
        with us.Allocator({policy!r}, machine=machine, address_range="64 MiB") as other:
            made = other.create_cache("made", 64, constructor=constructor)
            with made.alloc() as one:
                memoryview(one).release()
            made.free_bulk(made.alloc_bulk(3))
            made.free(made.alloc_address())
            made.stats(), made.validate(), made.account(), made._snapshot(), list(made.tunables)
            other.caches, other.stats(), other.account(), made.live(), other.memory_info()
            try:
                made.free(1)
            except us.CorruptionError:
                pass
            try:
                made.tunables["nothing"]
            except us.UnknownNameError:
                pass
            try:
                other.create_cache("made", 8)
            except ValueError:
                pass
        cache.alloc().free()
        cache.free(cache.alloc_address())

def counts():
    gc.collect()
    things = [*types, None, constructor, machine, cache, alloc, us.CorruptionError]
    return [sys.getrefcount(thing) for thing in things], sys.getallocatedblocks()

work(5)
before, blocks = counts()
work(50)
after, more = counts()
grown = [b - a for a, b in zip(before, after)]
# None is immortal from 3.12 on; before, the interpreter itself moves its count a little.
assert max(grown) < 25, grown
assert more - blocks < 200, more - blocks
obj.free()
"""


@pytest.mark.parametrize("model", [False, True], ids=["native", "model"])
def test_calls_leave_no_references(policy: str, model: bool) -> None:
    in_child(LEAKS.format(policy=policy, model=model))


def test_a_module_can_go_and_come_again() -> None:
    in_child(
        """
        import gc, sys, weakref
        import unislab as us
        types = []
        for _ in range(3):
            alloc = us.Allocator()
            types.append(weakref.ref(type(alloc)))
            alloc.create_cache("pair", 16).alloc().free()
            alloc.close()
            for name in [n for n in sys.modules if n.startswith("unislab")]:
                del sys.modules[name]
            del alloc, us
            import unislab as us
        gc.collect()
        assert sum(t() is not None for t in types) == 0, types
        """
    )


# ---- buffers of addresses ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "convert",
    [
        lambda a: a,
        lambda a: a.astype(np.int64),
        lambda a: a.tolist(),
        lambda a: tuple(a.tolist()),
        lambda a: array.array("Q", a.tolist()),
        lambda a: array.array("q", a.tolist()),
        lambda a: memoryview(a),
        lambda a: np.repeat(a, 2)[::2],
        lambda a: a[::-1],
        lambda a: a.astype(">u8"),
        lambda a: list(a),
        lambda a: a.reshape(-1, 1),
        lambda a: np.repeat(a, 2).reshape(-1, 2)[:, :1],
    ],
)
@pytest.mark.parametrize("n", [0, 1, 3, 500])
def test_addresses_enter_in_many_forms(
    opened: us.Allocator, convert: Callable[[Any], Any], n: int
) -> None:
    cache = opened.create_cache("pair", 16)
    cache.free_bulk(convert(cache.alloc_bulk(n)))
    assert len(cache.live()) == 0
    assert cache.stats().frees == n


@pytest.mark.parametrize(
    ("addresses", "error"),
    [
        ([1.5], TypeError),
        (["1"], TypeError),
        (np.uint64(7), TypeError),
        (np.zeros(2, np.float64), TypeError),
        (bytes(8), TypeError),
        (7, TypeError),
        ([-1], ValueError),
        (None, TypeError),
    ],
)
def test_what_is_no_array_of_addresses(
    opened: us.Allocator, addresses: Any, error: type[Exception]
) -> None:
    cache = opened.create_cache("pair", 16)
    with pytest.raises(error):
        cache.free_bulk(addresses)


def test_short_integers_are_widened(opened: us.Allocator) -> None:
    cache = opened.create_cache("pair", 16)
    with pytest.raises(us.CorruptionError):
        cache.free_bulk(np.array([1, 2], np.uint32))


def test_addresses_are_freed_from_numpy_scalars(opened: us.Allocator) -> None:
    cache = opened.create_cache("pair", 16)
    for address in cache.alloc_bulk(4):
        cache.free(address)
    assert len(cache.live()) == 0


def test_words_are_a_buffer_of_native_integers(opened: us.Allocator) -> None:
    cache = opened.create_cache("pair", 16)
    address = cache.alloc_address()
    view = memoryview(cache._live())
    assert (view.format, view.itemsize, view.tolist()) == ("Q", 8, [address])
    cache.free(address)


# ---- threads -----------------------------------------------------------------------------------


def together(n: int, work: Callable[[int], None]) -> None:
    """Run work(i) in n threads that start at once; raise what the first of them raised."""
    barrier = threading.Barrier(n)
    errors: list[BaseException] = []

    def run(i: int) -> None:
        barrier.wait()
        try:
            work(i)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(n)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
        assert not thread.is_alive(), "a thread hangs"
    if errors:
        raise errors[0]


def test_threads_share_a_cache(opened: us.Allocator) -> None:
    cache = opened.create_cache("shared", 64)

    def work(i: int) -> None:
        for n in range(60):
            with cache.alloc() as obj, memoryview(obj) as view:
                view[:8] = (i * 1000 + n).to_bytes(8, "little")
            bulk = cache.alloc_bulk(300)
            cache.stats()
            cache.free_bulk(bulk)
            cache.free(cache.alloc_address())

    together(4, work)
    stats = cache.stats(exact=True)
    assert stats.allocs == stats.frees == 4 * 60 * 302
    assert cache.validate().ok


def test_one_object_freed_by_many_is_freed_once(opened: us.Allocator) -> None:
    cache = opened.create_cache("shared", 64)
    for _ in range(20):
        obj = cache.alloc()
        refused = []

        def work(i: int, obj: us.Object = obj, refused: list[int] = refused) -> None:
            try:
                obj.free()
            except us.CorruptionError:
                refused.append(i)

        together(3, work)
        assert len(refused) == 2
    assert len(cache.live()) == 0
    assert cache.validate().ok


def test_destroying_and_closing_while_others_work(policy: str, kind: str) -> None:
    machine = us.Machine.grid(1, 1, 2) if kind == "model" else None
    for _ in range(5):
        alloc = us.Allocator(policy, machine=machine, address_range="1 GiB")
        cache = alloc.create_cache("shared", 64)

        def end(alloc: us.Allocator = alloc, cache: us.Cache = cache) -> None:
            for n in range(20):
                alloc.kfree(alloc.kmalloc(8 + n))
            cache.destroy(force=True)
            for n in range(20):
                alloc.kfree(alloc.kmalloc(8 + n))
            alloc.close(force=True)

        def look(alloc: us.Allocator = alloc) -> None:
            while True:  # a cache that goes meanwhile is left out
                alloc.stats(exact=True)
                alloc.validate()
                alloc.slabinfo_text()
                _ = alloc.caches

        def use(cache: us.Cache = cache) -> None:
            while True:
                cache.free_bulk(cache.alloc_bulk(300))
                cache.alloc_address()

        roles = [end, look, use, use]

        def work(i: int, roles: list[Callable[[], None]] = roles) -> None:
            try:
                roles[i]()
            except RuntimeError as error:  # the only thing that may happen
                assert "closed" in str(error) or "destroyed" in str(error)

        together(4, work)
        assert alloc.closed


def test_looking_goes_on_while_caches_come_and_go(opened: us.Allocator) -> None:
    done = threading.Event()

    def work(i: int) -> None:
        if i == 0:
            for _ in range(15):
                opened.stats()
                opened.validate()
                opened.slabinfo_text()
            done.set()
        n = 0
        while not done.is_set():
            n += 1
            opened.create_cache(f"mine-{i}-{n}", 64).destroy()

    together(3, work)


def test_caches_made_and_destroyed_by_many(opened: us.Allocator) -> None:
    def work(i: int) -> None:
        for n in range(15):
            cache = opened.create_cache(f"mine-{i}", 32 + n)
            assert opened.cache(f"mine-{i}") is cache
            with cache.alloc():
                assert cache in opened.caches.values()
            cache.destroy()

    together(4, work)
    assert not [name for name in opened.caches if name.startswith("mine")]


def test_bulk_calls_drop_the_gil(make: Callable[..., us.Allocator]) -> None:
    cache = make("unified").create_cache("pair", 16)
    go, ran = threading.Event(), threading.Event()
    other = threading.Thread(target=lambda: (go.wait(), ran.set()), daemon=True)
    other.start()
    interval = sys.getswitchinterval()
    sys.setswitchinterval(3600)  # the other thread runs only when this one drops the GIL by itself
    try:
        go.set()
        for _ in range(1000):
            cache.free(cache.alloc_address())
        ran_before = ran.is_set()
        for _ in range(10_000):
            cache.free_bulk(cache.alloc_bulk(2000))
            if ran.is_set():
                break
        assert ran.is_set()
        assert not ran_before
    finally:
        sys.setswitchinterval(interval)
    other.join()


def test_constructors_in_many_threads(opened: us.Allocator) -> None:
    made = []

    def construct(view: memoryview) -> None:
        view[:] = b"\x05" * len(view)
        made.append(threading.get_ident())

    cache = opened.create_cache("made", 512, constructor=construct)

    def work(i: int) -> None:
        for _ in range(20):
            addresses = cache.alloc_bulk(40)
            for address in addresses.tolist():
                assert us.raw.peek(address, 512) == b"\x05" * 512
            cache.free_bulk(addresses)
            cache.shrink()

    together(3, work)
    assert made


# ---- interpreters ------------------------------------------------------------------------------

SUB = """
import unislab as us
for machine in (None, us.Machine.grid(1, 1, 2)):
    with us.Allocator(machine=machine) as alloc:
        cache = alloc.create_cache("pair", 16, constructor=lambda view: None)
        with cache.alloc() as obj:
            assert len(bytes(obj)) == 16
        plain = alloc.create_cache("plain", 16)
        plain.free(plain.alloc_address())
        try:
            plain.free(1)
        except us.CorruptionError as error:
            assert error.address == 1
        assert plain.account()["live"] == 0
        assert alloc.validate().ok
left_open = us.Allocator()
left_open.kmalloc(100)
"""

RUN_SUB = """
import unislab as us
try:
    import _interpreters as interpreters
except ImportError:
    import _xxsubinterpreters as interpreters
kept = us.Allocator()
for _ in range(2):
    interpreter = interpreters.create()
    failed = interpreters.run_string(interpreter, {source!r})
    assert failed is None, failed
    interpreters.destroy(interpreter)
kept.create_cache("pair", 16).alloc().free()
kept.close()
print("done")
"""


def test_sub_interpreters() -> None:
    source = RUN_SUB.format(source=SUB)
    assert in_child(source, "-W", "ignore::DeprecationWarning") == "done\n"


def test_nothing_heavy_is_imported_before_it_is_needed() -> None:
    in_child(
        """
        import sys
        import unislab as us
        with us.Allocator() as alloc:
            alloc.create_cache("pair", 16).alloc().free()
        assert not {"numpy", "pandas", "matplotlib"} & set(sys.modules)
        """
    )


@pytest.mark.skipif(
    not hasattr(sys, "_is_gil_enabled"), reason="this Python has no builds without the GIL"
)
def test_importing_does_not_turn_the_gil_on() -> None:
    in_child(
        """
        import sys
        before = sys._is_gil_enabled()
        from unislab import _native, _model
        assert sys._is_gil_enabled() == before
        """
    )


# ---- the end of a process ----------------------------------------------------------------------

LEFT_OPEN = {
    "live objects": "cache.alloc_bulk(10000)",
    "a reaper": "reaper = alloc.reaper('1 ms')",
    "an exception on its way": "raise SystemExit(0)",
    "a view": "view = memoryview(cache.alloc())",
    "a cycle": "ring = [alloc, cache]; ring.append(ring)",
    "a thread at work": (
        "import threading\n"
        "def work():\n"
        "    while True:\n"
        "        cache.free(cache.alloc_address())\n"
        "threading.Thread(target=work, daemon=True).start()"
    ),
    "os._exit": "import os; os._exit(0)",
    "in builtins": "import builtins; builtins.kept = [alloc, cache, cache.alloc()]",
    "closed in atexit": "import atexit; atexit.register(alloc.close, force=True); cache.alloc()",
}


@pytest.mark.parametrize("how", LEFT_OPEN)
@pytest.mark.parametrize("model", [False, True], ids=["native", "model"])
def test_ending_with_an_open_allocator(how: str, model: bool) -> None:
    machine = "us.Machine.grid(1, 1, 1)" if model else "None"
    source = (
        "import warnings; warnings.simplefilter('ignore')\n"
        "import unislab as us\n"
        f"alloc = us.Allocator(machine={machine})\n"
        "cache = alloc.create_cache('pair', 16)\n" + LEFT_OPEN[how] + "\n"
    )
    in_child(source)


def test_a_warning_at_exit_does_not_crash() -> None:
    command = [sys.executable, "-X", "dev", "-c"]
    source = "import unislab as us; kept = us.Allocator().create_cache('pair', 16).alloc()"
    done = subprocess.run([*command, source], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr


# ---- both modules ------------------------------------------------------------------------------


@pytest.mark.parametrize("module", [_native, _model])
def test_empty_calls_for_the_benchmark(module: Any, make: Callable[..., us.Allocator]) -> None:
    assert module._noop() is None
    assert module._noop(1 << 46) is None


@pytest.mark.parametrize("module", [_native, _model])
def test_modules_keep_no_object_alive(module: Any) -> None:
    machine = us.Machine.grid(1, 1, 1) if module is _model else None
    alloc = us.Allocator(machine=machine)
    alloc.close()
    gc.collect()
    assert not [r for r in gc.get_referrers(alloc) if r is not sys._getframe()]
