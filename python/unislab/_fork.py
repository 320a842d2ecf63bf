"""What has to be done before this process forks.

The hook stays registered for ever, so this module refers to nothing else of the package.

NumPy and pandas import modules of the standard library that hold a lock over every fork. These are
imported here, so that their hooks stand before ours: ours, the later one, then runs first and waits
for imports holding none of their locks, which an import under way may want; and an import that
ends meanwhile brings no hook of which a fork would run the second half alone.
"""

from __future__ import annotations

import concurrent.futures.thread as _executors  # noqa: F401
import importlib
import logging as _logging  # noqa: F401
import os
import sys


def _finish_imports() -> None:
    """Wait for the imports that another thread has under way: a fork's child never could.

    NumPy and pandas are imported when they are first needed, which a caller does not see.
    """
    for name in ("numpy", "pandas"):
        if name in sys.modules:
            importlib.import_module(name)


os.register_at_fork(before=_finish_imports)
