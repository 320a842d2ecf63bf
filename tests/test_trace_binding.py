"""TraceReader and Column as Python objects: threads, references, memory."""

from __future__ import annotations

import contextlib
import gc
import io
import sys
import threading

import numpy as np
import pytest

from unislab import _native

LINE = b"            bash-1       [000] .....     1.000001: kmalloc: ptr=%#x bytes_req=8\n"
TEXT = b"".join(LINE % (address * 16) for address in range(1, 50_000))


def test_columns_outlive_the_reader() -> None:
    reader = _native.TraceReader()
    reader.feed(TEXT)
    column = reader.finish()["columns"]["object"]
    del reader
    gc.collect()
    array = np.frombuffer(column, np.int64)
    del column
    gc.collect()
    assert array[-1] == len(array) - 1 == 49_998
    with pytest.raises(ValueError, match="WRITEABLE"):
        array.flags.writeable = True


def test_columns_say_what_they_hold() -> None:
    reader = _native.TraceReader()
    reader.feed(TEXT)
    columns = reader.finish()["columns"]
    assert list(columns) == list(_native.TRACE_COLUMNS)
    for name, column in columns.items():
        view = memoryview(column)
        assert (view.format, view.ndim, view.readonly) == (_native.TRACE_COLUMNS[name][0], 1, True)
        assert len(column) == view.shape[0] == 49_999
        assert sys.getsizeof(column) >= view.nbytes
    with pytest.raises((BufferError, TypeError)):
        io.BytesIO(bytes(8)).readinto(columns["kind"])


def test_empty_columns() -> None:
    columns = _native.TraceReader().finish()["columns"]
    assert {len(memoryview(column)) for column in columns.values()} == {0}


def test_objects_drop_their_types() -> None:
    before = [sys.getrefcount(t) for t in (_native.TraceReader, _native.Column)]
    for _ in range(10):
        reader = _native.TraceReader()
        reader.feed(TEXT)
        reader.finish()
    del reader
    gc.collect()
    after = [sys.getrefcount(t) for t in (_native.TraceReader, _native.Column)]
    assert after == before


def test_one_thread_at_a_time() -> None:
    """A second thread is turned away, never let in; nothing is lost or read twice."""
    reader = _native.TraceReader()
    start = threading.Barrier(4)
    fed = [0, 0, 0, 0]

    def feed(number: int) -> None:
        start.wait()
        for _ in range(20):
            try:
                reader.feed(TEXT)
            except RuntimeError as error:
                assert "another thread" in str(error)
            else:
                fed[number] += 1

    threads = [threading.Thread(target=feed, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sum(fed) >= 1
    assert reader.finish()["counts"]["allocs"] == 49_999 * sum(fed)


def test_other_threads_run_while_text_is_read() -> None:
    """feed() gives up the interpreter: a thread makes progress inside one long call."""
    reader = _native.TraceReader()
    long = TEXT * 8
    seen: list[bool] = []
    inside = threading.Event()

    def watch() -> None:
        inside.wait()
        try:
            reader.feed(b"")
        except RuntimeError:
            seen.append(True)  # the call of the main thread is still going on

    for _ in range(20):
        inside.clear()
        thread = threading.Thread(target=watch)
        thread.start()
        inside.set()
        with contextlib.suppress(RuntimeError):  # the watcher may have come first
            reader.feed(long)
        thread.join()
        if seen:
            break
    assert seen


@pytest.mark.parametrize("kind", ["TraceReader", "Column"])
def test_types_are_closed(kind: str) -> None:
    type_ = getattr(_native, kind)
    assert type_.__module__ == "unislab._native"
    with pytest.raises(TypeError):
        type_.extra = 1
