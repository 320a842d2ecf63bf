"""README's table of figures from ``build/bench.json``: ``python bench/readme_table.py``.

Prints the figures that have a bound as a Markdown table, each with the part of the benchmark that
measures it alone.
"""

from __future__ import annotations

import json
from pathlib import Path

JSON = Path(__file__).resolve().parent.parent / "build" / "bench.json"


def main() -> None:
    """Print the table."""
    print("| figure | median | 95 % interval | bound | | `bench/run.py --only` |")
    print("|---|---|---|---|---|---|")
    for row in json.loads(JSON.read_text()):
        if row["bound"] is None:
            continue
        low, high = row["interval"]
        unit = f" {row['unit']}".rstrip()
        state = "met" if row["ok"] else "**missed**"
        print(
            f"| {row['name']} | {row['value']:.3g}{unit} | {low:.3g} to {high:.3g} "
            f"| {row['bound']} | {state} | {row['part']} |"
        )


if __name__ == "__main__":
    main()
