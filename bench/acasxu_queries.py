"""Properties 5 to 10 of ACAS Xu beside the four of a folder: all 186 instances of the competition.

    python bench/acasxu_queries.py FOLDER OUT
    python bench/vnncomp.py OUT --validator DIR

FOLDER has the 45 networks, `prop_1.vnnlib` to `prop_4.vnnlib` and `instances.csv`. OUT gets links
to its files, the other properties in version 1 (`prop_6.vnnlib`) and 2 (`prop_6.v2.vnnlib`) and a
longer `instances.csv`. Ranges and advisories are those of the paper on Reluplex (Katz et al. 2017,
appendix); inputs are scaled as the networks were trained, with nine decimals as in the other four.
The known verdicts are those on which the competitions' tools agree.
"""

from __future__ import annotations

import argparse
import csv
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

# Distance, angle to the intruder, its heading, own speed, its speed: mean and range.
SCALES = (
    (19791.091, 60261.0),
    (0.0, 6.28318530718),
    (0.0, 6.28318530718),
    (650.0, 1100.0),
    (600.0, 1200.0),
)
PI = 3.141592  # as the paper writes it
CLEAR, WEAK_LEFT, WEAK_RIGHT, STRONG_LEFT, STRONG_RIGHT = range(5)  # the least score is advised

Box = tuple[tuple[float, float], ...]


class Asked(NamedTuple):
    """``wanted``: one of these must have a score below all others'; or, if ``never``, none may."""

    network: str
    boxes: tuple[Box, ...]
    wanted: tuple[int, ...]
    never: bool
    verdict: str


def _box(*ends: tuple[float, float]) -> Box:
    return ends


BEHIND = (-PI, -PI + 0.005)
PROPERTIES = {
    5: Asked(
        "1_1",
        (_box((250, 400), (0.2, 0.4), BEHIND, (100, 400), (0, 400)),),
        (STRONG_RIGHT,),
        False,
        "verified",
    ),
    6: Asked(
        "1_1",
        tuple(
            _box((12000, 62000), side, BEHIND, (100, 1200), (0, 1200))
            for side in ((0.7, PI), (-PI, -0.7))
        ),
        (CLEAR,),
        False,
        "verified",
    ),
    7: Asked(
        "1_9",
        (_box((0, 60760), (-PI, PI), (-PI, PI), (100, 1200), (0, 1200)),),
        (STRONG_LEFT, STRONG_RIGHT),
        True,
        "falsified",
    ),
    8: Asked(
        "2_9",
        (_box((0, 60760), (-PI, -0.75 * PI), (-0.1, 0.1), (600, 1200), (600, 1200)),),
        (CLEAR, WEAK_LEFT),
        False,
        "falsified",
    ),
    9: Asked(
        "3_3",
        (_box((2000, 7000), (-0.4, -0.14), (-PI, -PI + 0.01), (100, 150), (0, 150)),),
        (STRONG_LEFT,),
        False,
        "verified",
    ),
    10: Asked(
        "4_5",
        (_box((36000, 60760), (0.7, PI), (-PI, -PI + 0.01), (900, 1200), (600, 1200)),),
        (CLEAR,),
        False,
        "verified",
    ),
}


def scaled(index: int, value: float) -> str:
    mean, size = SCALES[index]
    text = f"{(value - mean) / size:.9f}".rstrip("0")
    return text + "0" if text.endswith(".") else text


def lines(number: int, version: int) -> Iterator[str]:
    """The query: is there a point at which the property is violated?"""
    asked = PROPERTIES[number]
    if version == 1:
        yield from (f"(declare-const {letter}_{k} Real)" for letter in "XY" for k in range(5))
    else:
        yield "(vnnlib-version <2.0>)"
        yield "(declare-network f"
        yield "  (declare-input X real [1,1,1,5])"
        yield "  (declare-output Y real [1,5])"
        yield ")"
    x, y = ("X_{}", "Y_{}") if version == 1 else ("X[0,0,0,{}]", "Y[0,{}]")
    regions = [
        [
            f"({sign} {x.format(k)} {scaled(k, end)})"
            for k, (low, high) in enumerate(box)
            for sign, end in (("<=", high), (">=", low))
        ]
        for box in asked.boxes
    ]
    if len(regions) == 1:
        yield from (f"(assert {bound})" for bound in regions[0])
    else:
        yield f"(assert (or {' '.join('(and ' + ' '.join(r) + ')' for r in regions)}))"
    others = [k for k in range(5) if k not in asked.wanted]
    if asked.never:  # one of them is at most all the others
        ways = [[(w, k) for k in others] for w in asked.wanted]
    else:  # another one is at most all of them
        ways = [[(k, w) for w in asked.wanted] for k in others]
    parts = []
    for way in ways:
        atoms = [f"(<= {y.format(a)} {y.format(b)})" for a, b in way]
        parts.append(atoms[0] if len(atoms) == 1 else f"(and {' '.join(atoms)})")
    yield f"(assert (or {' '.join(parts)}))"


def write(folder: Path, out: Path) -> int:
    """How many instances there are."""
    out.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.suffix in (".onnx", ".vnnlib") and not (out / path.name).exists():
            (out / path.name).symlink_to(path.resolve())
    with (folder / "instances.csv").open(encoding="utf-8") as stream:
        rows = list(csv.DictReader(stream))
    for number, asked in PROPERTIES.items():
        for version, suffix in ((1, "vnnlib"), (2, "v2.vnnlib")):
            text = "\n".join(lines(number, version)) + "\n"
            (out / f"prop_{number}.{suffix}").write_text(text, encoding="utf-8")
        rows.append(
            {
                "network": f"ACASXU_run2a_{asked.network}_batch_2000.onnx",
                "property": f"prop_{number}.vnnlib",
                "timeout": "116",
                "verdict": asked.verdict,
            }
        )
    with (out / "instances.csv").open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, ["network", "property", "timeout", "verdict"])
        writer.writeheader()
        writer.writerows({key: row[key] for key in writer.fieldnames} for row in rows)
    return len(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("out", type=Path)
    arguments = parser.parse_args()
    print(f"{write(arguments.folder, arguments.out)} instances in {arguments.out}")


if __name__ == "__main__":
    main()
