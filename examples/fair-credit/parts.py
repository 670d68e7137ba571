"""Fairness in every part of a domain, as one question with a row for each part.

    python parts.py TASK.json PROTECTED FOLDER

TASK names the inputs with their least and largest values, and how many values a part has: ranges
that are longer are cut, and every combination of their pieces is a part. Written are the rule
(fair.qll), the least values of the parts (parts.csv, a row each) and the schema that names them
(parts.toml):

    qll verify FOLDER/fair.qll --network net.onnx --data FOLDER/parts.toml --count N --jobs 2 \\
        --json verdicts.json

Killed, it goes on where it stopped.
"""

from __future__ import annotations

import csv
import itertools
import json
import sys
from pathlib import Path
from typing import Any

RULE = """# No two points that differ in {protected} alone are decided differently, in the part of
# the domain that begins at a row's values and has {width} values of each input that is cut.
inputs {names}
{cut}forall x in box([{low}],
                [{high}])
            and integer(x){part},
       x2 in integer(x2) and {least} <= x2["{protected}"] <= {most}
            and (forall i in inputs where i != "{protected}": x2[i] == x[i]):
  y[0] > 0 -> y2[0] >= 0
"""
PART = """
            and (forall i in cut: x[i] >= x0[i] and x[i] <= x0[i] + {most})"""
SCHEMA = """file = "parts.csv"
test = "parts.csv"
target = "part"
task = "regression"
"""


def quoted(names: list[str]) -> str:
    return ", ".join(json.dumps(name) for name in names)


def write(task: dict[str, Any], protected: str, folder: Path) -> int:
    """The number of parts."""
    inputs, width = task["inputs"], task["partition"]
    long = [i["name"] for i in inputs if i["high"] - i["low"] + 1 > width]
    starts = [
        range(i["low"], i["high"] + 1, width) if i["name"] in long else (i["low"],) for i in inputs
    ]
    (own,) = [i for i in inputs if i["name"] == protected]
    rule = RULE.format(
        protected=protected,
        width=width,
        names=quoted([i["name"] for i in inputs]),
        cut=f"set cut = {{{quoted(long)}}}\n" if long else "",
        low=", ".join(str(i["low"]) for i in inputs),
        high=", ".join(str(i["high"]) for i in inputs),
        part=PART.format(most=width - 1) if long else "",
        least=own["low"],
        most=own["high"],
    )
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "fair.qll").write_text(rule)
    (folder / "parts.toml").write_text(SCHEMA)
    with (folder / "parts.csv").open("w", newline="") as stream:
        rows = csv.writer(stream)
        rows.writerow([*(i["name"] for i in inputs), "part"])
        number = -1
        for number, corner in enumerate(itertools.product(*starts)):
            rows.writerow([*corner, number])
    return number + 1


def main(task: str, protected: str, folder: str) -> None:
    count = write(json.loads(Path(task).read_text()), protected, Path(folder))
    sys.stdout.write(f"{count} parts\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
