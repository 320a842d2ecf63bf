"""What has to be done before this process forks.

The hook stays registered for ever, so this module refers to nothing else of the package.
"""

from __future__ import annotations

import importlib
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
