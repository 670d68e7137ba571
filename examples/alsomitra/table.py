"""The published rows with one input replaced: python table.py writes seeds.csv.

All three properties speak of x + y, how far the seed is above the line that it should follow. Given
that height in place of y (of which it is a function, and y of it), their regions are boxes.
"""

from __future__ import annotations

import csv
import os
import sys
from pathlib import Path

COLUMNS = ("v_x", "v_y", "omega", "theta", "x", "height", "output")


def main(path: str) -> None:
    folder = Path(os.environ["QLL_SHARED"]) / "tabular" / "regression" / "alsomitra"
    with (folder / "alsomitra_data_680.csv").open() as stream:
        rows = [[float(cell) for cell in row] for row in csv.reader(stream)]
    with Path(path).open("w", newline="") as stream:
        table = csv.writer(stream)
        table.writerow(COLUMNS)
        table.writerows([*row[:5], row[4] + row[5], row[7]] for row in rows)


if __name__ == "__main__":
    main(*sys.argv[1:] or ["seeds.csv"])
