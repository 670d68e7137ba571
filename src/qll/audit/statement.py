"""What a certificate claims, in words in which nothing hides.

A proof of the wrong thing is a proof as well, so everything that is read is shown: the text of the
property (the checker takes only the canonical one), labels, ties, arithmetic, normalisation,
network, data point and region. Long rows of numbers are shown by their hash.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from qll.audit.layout import Header, digest
from qll.audit.network import Array

MOST_SHOWN = 16  # numbers of a row; of more the hash and the range
MEANS = {
    "real": "real",
    "float32": "float32: every evaluation, whatever the order of its sums, at float32 inputs",
}
TIES = {False: "satisfies the property", True: "violates the property"}


@dataclass(frozen=True, eq=False)
class Statement:
    """``region`` (lower and upper ends) and ``inhabited`` (a point of it is known) are None where
    the claim was refused before there was one."""

    header: Header
    x0: Array
    input_shape: tuple[int, ...] | None = None
    outputs: int | None = None
    region: tuple[Array, Array] | None = None
    inhabited: bool | None = None

    @property
    def shared(self) -> str:
        """What the certificates of a folder mostly have in common."""
        header = self.header
        lines = [f"network: sha256 {header.network}"]
        if self.input_shape is not None:
            lines[0] += f", inputs {self.input_shape}, outputs {self.outputs}"
        if header.against is not None:
            lines.append(f"network of x2: sha256 {header.against}")
        if header.mean is None or header.std is None:
            lines.append("normalisation: none")
        else:
            lines.append(f"normalisation: (x - mean) / std, mean {_row(header.mean)}")
            lines[-1] += f", std {_row(header.std)}"
        lines.append(f"arithmetic: {MEANS[header.arithmetic]}")
        lines.append(f"a tie: {TIES[header.tie_violates]}")
        return "\n".join([*lines, "property:", *self._text()])

    def _text(self) -> list[str]:
        """Line by line only if it was found to be canonical, which is before there is a region."""
        text = self.header.text
        if self.region is None:
            return [f"    {text!a}"]
        # Names of outputs in quotes may hold any sign but quotes and backslashes.
        return [f"    {plain(line)}" for line in text.rstrip("\n").split("\n")]

    @property
    def own(self) -> str:
        """What each certificate says of its own data point."""
        labels = self.header.labels
        said = "no labels" if labels is None else f"labels {{{', '.join(map(str, labels))}}}"
        said += f"; data point {_row(self.x0)}"
        if self.region is None:
            return said
        lower, upper = self.region
        if lower.size <= MOST_SHOWN:
            said += f"; box from {_row(lower)} to {_row(upper)}"
        else:
            wide = upper - lower
            said += f"; box sha256 {digest(lower.tobytes(), upper.tobytes())}, inputs from "
            said += f"{float(lower.min())!r} to {float(upper.max())!r}, each "
            said += f"{float(wide.min())!r} to {float(wide.max())!r} wide"
        if not self.inhabited:
            said += "; no point is known that meets the region's constraints: it may be empty"
        return said


def plain(text: str) -> str:
    """In printable ASCII, other signs by their numbers, as in Python."""
    return "".join(c if " " <= c <= "~" else ascii(c)[1:-1] for c in text)


def _row(values: Any) -> str:
    row = np.asarray(values, dtype=np.float64)
    if row.size <= MOST_SHOWN:
        return str(row.tolist())
    ends = f"from {float(row.min())!r} to {float(row.max())!r}"
    return f"of {row.size} numbers {ends}, sha256 {digest(row.tobytes())}"
