"""The verdict of a rule that needs no data point, in words: with the witness, by names."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from qll.cli.options import counted

if TYPE_CHECKING:
    from qll.networks import Network
    from qll.property import Property

# Inputs of a witness that are shown; the rest are in --json.
_SHOWN = 40


def closed_lines(
    rule: Property, row: dict[str, Any], networks: tuple[Network, Network]
) -> list[str]:
    """``networks`` are those of x and of x2."""
    status = row["status"]
    if row.get("vacuous"):
        return ["verified, vacuously: no point meets the premise, whatever the network computes"]
    if status == "unknown":
        bound = row.get("bound")
        short = "" if bound is None or bound > 0 else f" (bound {bound:.3g}, needed above 0)"
        detail = f" ({row['detail']})" if row.get("detail") else ""
        return [f"unknown: {row['reason']}{detail}{short}"]
    if status == "verified" or row.get("witness") is None:
        return [f"{status} ({counted(row['nodes'], 'node')}, {row['seconds']:.2f} s)"]
    broke = f": {row['detail']}" if row.get("detail") else ""
    witness = witness_lines(rule, row["witness"], row.get("witness2"), networks)
    return [f"falsified ({row['seconds']:.2f} s){broke}", *witness]


def witness_lines(
    rule: Property,
    first: list[float],
    second: list[float] | None,
    networks: tuple[Network, Network],
    *,
    all_in: str = "--json",
) -> list[str]:
    """The point, or the two of them, and what the networks answer there, by names; ``all_in`` is
    the option that writes every number."""
    names = [f"x[{k}]" for k in range(len(first))]
    outputs = [f"y[{k}]" for k in range(networks[0].output_size)]
    for declared in rule.specification.names:
        if declared.kind == "inputs":
            names = list(declared.names)
        else:
            outputs = list(declared.names)
    from qll.verify.explanation import entries

    points = [first] if second is None else [first, second]
    said = entries(names, *points, digits=9)
    lines = [f"  {name} = {'  and  '.join(dict.fromkeys(at))}" for name, at in said[:_SHOWN]]
    if len(said) > _SHOWN:
        lines.append(f"  and {len(said) - _SHOWN} inputs more: see {all_in}")
    values = [_outputs(n, point) for n, point in zip(networks, (first, second), strict=True)]
    for k, name in enumerate(outputs):
        if values[0] is None:
            break
        line = f"  {name}: {values[0][k]:.6g}"
        if values[1] is not None:
            line += f"  and  {values[1][k]:.6g}"
        lines.append(line)
    return lines


def _outputs(network: Network, point: list[float] | None) -> list[float] | None:
    """What ONNX Runtime answers there."""
    import numpy as np

    if point is None:
        return None
    return np.asarray(network.runtime(np.array([point]))).reshape(-1).tolist()
