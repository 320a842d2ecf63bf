"""``python -m unislab`` is the command ``unislab``."""

from __future__ import annotations

from unislab.cli import main

main()
