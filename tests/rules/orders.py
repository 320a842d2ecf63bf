"""The known answers of SLUB's order search: pages of 4 KiB, max_order 3."""

from __future__ import annotations

CPUS = (1, 2, 4, 8, 16, 64, 256, 1024)

# size: order/objects for each number of CPUs.
TABLE = """
64    0/64 0/64 0/64 0/64 0/64 0/64 0/64 0/64
96    0/42 0/42 0/42 0/42 0/42 0/42 0/42 1/85
128   0/32 0/32 0/32 0/32 0/32 0/32 1/64 1/64
192   0/21 0/21 0/21 0/21 1/42 1/42 1/42 2/85
256   0/16 0/16 0/16 1/32 1/32 1/32 2/64 2/64
320   0/12 0/12 1/25 1/25 1/25 2/51 2/51 2/51
512   0/8  1/16 1/16 2/32 2/32 2/32 3/64 3/64
700   1/11 2/23 2/23 2/23 3/46 3/46 3/46 3/46
1024  1/8  2/16 2/16 3/32 3/32 3/32 3/32 3/32
1088  2/15 2/15 3/30 3/30 3/30 3/30 3/30 3/30
1216  2/13 2/13 3/26 3/26 3/26 3/26 3/26 3/26
2048  2/8  3/16 3/16 3/16 3/16 3/16 3/16 3/16
2368  3/13 3/13 3/13 3/13 3/13 3/13 3/13 3/13
3072  3/10 3/10 3/10 3/10 3/10 3/10 3/10 3/10
4096  3/8  3/8  3/8  3/8  3/8  3/8  3/8  3/8
8192  3/4  3/4  3/4  3/4  3/4  3/4  3/4  3/4
"""


def _answer(text: str) -> tuple[int, int]:
    order, objects = text.split("/")
    return int(order), int(objects)


def _row(line: str) -> tuple[int, dict[int, tuple[int, int]]]:
    size, *answers = line.split()
    return int(size), dict(zip(CPUS, map(_answer, answers), strict=True))


ORDERS = dict(map(_row, TABLE.split("\n")[1:-1]))
