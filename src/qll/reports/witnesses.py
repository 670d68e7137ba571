"""Counterexamples of a run as small pictures with the outputs before and after."""

from __future__ import annotations

import base64
import io
import math
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from qll.errors import MissingExtra, QllError, RunError
from qll.formula.hard import Affine, HardForm, Max
from qll.properties import load
from qll.property import Property
from qll.reports.records import Run
from qll.reports.style import require

_PATTERNS = ("counterexamples*.npz", "witnesses*.npz", "*/counterexamples.npz")
_MOST_ATOMS = 3  # comparisons that are written out
_MOST_BYTES = 1 << 28  # of one file: a report is no place for more


@dataclass(frozen=True)
class Witness:
    """One point of a region that violates the property. Pictures are data addresses."""

    index: int
    labels: tuple[int, ...]
    clean: str
    attacked: str
    difference: str
    largest: float
    before: tuple[float, ...] | None
    after: tuple[float, ...]
    margin: float
    broke: tuple[int, ...] = ()
    said: str = ""


def read_witnesses(run: Run, most: int) -> tuple[list[Witness], int]:
    """The first ``most`` witnesses of a run, and how many there are in all."""
    shown: list[Witness] = []
    total = 0
    files = {path for pattern in _PATTERNS for path in run.path.glob(pattern)}
    for path in sorted(files):
        arrays = read_arrays(path)
        count = len(arrays["index"])
        total += count
        take = min(count, most - len(shown))
        if take > 0 and arrays["clean"].ndim == 4 and arrays["clean"].shape[1] in (1, 3):
            before = _outputs_before(run, arrays, take)
            shown += [_witness(run, arrays, before, k) for k in range(take)]
    return shown, total


def read_arrays(path: Path) -> dict[str, NDArray[Any]]:
    wanted = ("index", "clean", "attacked_x", "labels", "outputs", "margin")
    try:
        if path.stat().st_size > _MOST_BYTES:
            raise ValueError(f"{path.stat().st_size} bytes")
        with np.load(path, allow_pickle=False) as held:  # noqa: TID251
            names = [*wanted, *(name for name in ("clean_outputs",) if name in held)]
            for name in names:
                _check_size(held.zip, f"{name}.npy")
            arrays = {name: held[name] for name in names}
        lengths = {len(array) for array in arrays.values()}
        if len(lengths) != 1 or arrays["clean"].shape != arrays["attacked_x"].shape:
            raise ValueError("arrays that do not fit each other")
        return arrays
    except Exception as error:  # numpy, zipfile and zlib each have errors of their own
        raise RunError(
            "the witnesses of a run cannot be read",
            where=str(path),
            expected="arrays as 'qll attack --out' keeps them",
            found=str(error) or type(error).__name__,
            fix="run qll attack again, or remove the file",
        ) from error


def _check_size(archive: zipfile.ZipFile, name: str) -> None:
    """numpy makes room for what a header says before it reads: compare that with what is there."""
    stored = archive.getinfo(name).file_size
    with archive.open(name) as file:
        version = np.lib.format.read_magic(file)
        read = {(1, 0): np.lib.format.read_array_header_1_0}.get(
            version, np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(file)
    if stored > _MOST_BYTES or math.prod(shape) * dtype.itemsize > stored:
        raise ValueError(f"{name} of shape {shape} in {stored} bytes")


def _outputs_before(
    run: Run, arrays: Mapping[str, NDArray[Any]], count: int
) -> NDArray[Any] | None:
    """At the clean images: as recorded, or by the run's own network if it can be run here."""
    if "clean_outputs" in arrays:
        return arrays["clean_outputs"]
    network = run.path / "model.onnx"
    if not network.is_file():
        return None
    from qll.networks.runtime import OnnxRuntime

    try:
        return OnnxRuntime(network)(arrays["clean"][:count])
    except (MissingExtra, QllError):
        return None


def _witness(
    run: Run, arrays: Mapping[str, NDArray[Any]], before: NDArray[Any] | None, k: int
) -> Witness:
    clean = np.asarray(arrays["clean"][k], np.float64)
    attacked = np.asarray(arrays["attacked_x"][k], np.float64)
    change = attacked - clean
    peak = float(np.abs(change).max())
    labels = arrays["labels"][k]
    given = np.flatnonzero(labels) if labels.ndim else np.asarray([labels])
    values = {"y": arrays["outputs"][k], "x": attacked, "x0": clean}
    if before is not None:
        values["y0"] = before[k]
    broken = broken_atoms(run, tuple(int(c) for c in given), values)
    return Witness(
        index=int(arrays["index"][k]),
        labels=tuple(int(c) for c in given),
        clean=png_address(clean),
        attacked=png_address(attacked),
        difference=png_address(0.5 + change / (2 * peak) if peak else change + 0.5),
        largest=peak,
        before=None if before is None else tuple(float(v) for v in before[k]),
        after=tuple(float(v) for v in arrays["outputs"][k]),
        margin=float(arrays["margin"][k]),
        broke=tuple(sorted({i for atom in broken for i in _outputs_of(atom)})),
        said=" and ".join(map(_text, broken[:_MOST_ATOMS])) if len(broken) <= _MOST_ATOMS else "",
    )


def rule_of(run: Run) -> Property:
    """The property that a run is judged by."""
    parameters = run.config.parameters if run.config.judged is None else run.config.judged
    return load(run.config.property).with_parameters(**parameters)


def broken_atoms(
    run: Run, labels: tuple[int, ...], values: Mapping[str, NDArray[Any]]
) -> list[Affine]:
    """The comparisons that make the property false at a point: of a conjunction its worst part, of
    a disjunction all parts, since each of them is violated."""
    flat = {name: np.asarray(value, np.float64).reshape(-1) for name, value in values.items()}
    try:
        prop = rule_of(run)
        pattern = labels if prop.uses_labels else None
        outputs, inputs = len(flat["y"]), tuple(values["x"].shape)
        form = prop.hard_form(pattern, outputs=outputs, inputs=inputs)
    except QllError:  # a property that has moved or changed: the figures are shown without it
        return []

    def value(node: HardForm) -> float:
        if isinstance(node, Affine):
            terms, constant = node.floats
            return constant + sum(w * float(flat[s][i]) for (s, i), w in terms)
        found = [value(part) for part in node.parts]
        empty = -math.inf if isinstance(node, Max) else math.inf
        return (max if isinstance(node, Max) else min)(found, default=empty)

    def broken(node: HardForm) -> list[Affine]:
        if isinstance(node, Affine):
            return [node]
        if isinstance(node, Max):
            return broken(max(node.parts, key=value)) if node.parts else []
        return [atom for part in node.parts for atom in broken(part)]

    try:
        return broken(form) if value(form) > 0 else []
    except (KeyError, IndexError, RecursionError):  # a point that is not recorded
        return []


def _outputs_of(atom: Affine) -> list[int]:
    return [i for (source, i), weight in atom.terms if source == "y" and weight]


def _text(atom: Affine) -> str:
    """What was asked, in the language's words: the atom is violated above 0."""
    terms, constant = atom.floats
    left = [(w, f"{s}[{i}]") for (s, i), w in terms if w > 0]
    right = [(-w, f"{s}[{i}]") for (s, i), w in terms if w < 0]

    def side(terms: list[tuple[float, str]], constant: float) -> str:
        parts = [name if w == 1 else f"{w:.4g}*{name}" for w, name in terms]
        if constant or not parts:
            parts.append(f"{constant:.4g}")
        return " + ".join(parts)

    low, high = (constant, 0.0) if constant > 0 else (0.0, 0.0 - constant)
    return f"{side(left, low)} <= {side(right, high)}"


def png_address(image: NDArray[Any]) -> str:
    """(C, H, W) in raw units as a ``data:`` address; the page enlarges it."""
    from qll.data.pictures import enlarge

    try:
        from PIL import Image
    except ImportError as error:
        raise require("pillow", "showing witnesses") from error
    content = io.BytesIO()
    Image.fromarray(enlarge(image, 1)).save(content, format="PNG")
    return "data:image/png;base64," + base64.b64encode(content.getvalue()).decode()
