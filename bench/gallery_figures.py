"""The pictures of docs/gallery.md, and for each of its rules a small network that obeys it.

    python bench/gallery_figures.py [--only N,N] [--quick] [--json OUT]

Each network learns made-up data, once without its rule and once with it, until every region that is
asked for is verified; that one is kept in examples/gallery. A picture shows by how much the rule
holds (blue) or is broken (red) over two inputs, without the rule and with it; for rules between two
points it shows the output along the input in which they differ. tests/test_gallery.py proves the
kept networks again.
"""

from __future__ import annotations

import argparse
import json
import re
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

import qll
from qll.networks import load
from qll.networks.onnx_writer import export_onnx

ROOT = Path(__file__).parents[1]
PAGE, FIGURES, NETWORKS = (
    ROOT / "docs/gallery.md",
    ROOT / "docs/figures/gallery",
    "examples/gallery",
)
POINTS, INPUTS = 3, 4  # data points that are asked for; inputs where a rule names none
STEPS, EVERY = 600, 50
GRID = 61
# What is added to the outputs to learn: exactly one of two that cross somewhere has to be 0 there.
TILT = {9: [1.2, -1.2]}


def rules() -> list[str]:
    return re.findall(r"^```qll\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.M | re.S)


def width_of(prop: Any) -> int:
    named = [d.names for d in prop.specification.names if d.kind == "inputs"]
    return len(named[0]) if named else INPUTS


def asked(prop: Any, number: int) -> tuple[Tensor, Tensor | None]:
    """The data points of a rule: of the classes that it speaks of, in the middle of the box."""
    outputs = prop.specification.outputs
    classes = torch.arange(POINTS) % outputs
    if number == 2:  # it speaks of stop signs alone
        classes = torch.zeros(POINTS, dtype=torch.long)
    if number == 3:
        classes = torch.tensor([0, 5, 7])
    x = centres(outputs, width_of(prop))[classes]
    return x, classes if prop.uses_labels else None


def centres(outputs: int, width: int) -> Tensor:
    """A corner of a cube for each class, by the digits of its number."""
    numbers = torch.arange(outputs)[:, None] >> torch.arange(width)
    return 0.36 + 0.28 * (numbers % 2)


def box(prop: Any, x: Tensor) -> tuple[Tensor, Tensor]:
    """Where inputs lie: the region's own box, or the unit box around data points."""
    if prop.is_closed:
        region = qll.Region.of(prop, x[:1])
        return region.lower.flatten(), region.upper.flatten()
    return torch.zeros(x.shape[1]), torch.ones(x.shape[1])


def data(prop: Any, number: int, x0: Tensor, count: int = 256) -> tuple[Tensor, Tensor]:
    """Inputs and what to predict: clusters of classes, or an arbitrary smooth function."""
    low, high = box(prop, x0)
    x = low + (high - low) * torch.rand(count, len(low))
    outputs = prop.specification.outputs
    if prop.uses_labels:
        labels = torch.arange(count) % outputs
        near = centres(outputs, len(low))[labels]
        return (near + 0.03 * torch.randn_like(near)).clamp(0, 1), labels
    unit = (x - low) / (high - low).clamp_min(1e-9)
    mix = torch.randn(len(low), outputs, generator=torch.Generator().manual_seed(7))
    return x, 1.5 * torch.sin(3 * unit @ mix) + torch.tensor(TILT.get(number, 0.0))


def network(prop: Any, x0: Tensor) -> nn.Module:
    low, high = box(prop, x0)
    first = nn.Linear(len(low), 16)
    with torch.no_grad():  # inputs of all sizes, as if they were normalised
        span = (high - low).clamp_min(1e-9) / 2
        first.weight /= span
        first.bias -= first.weight @ ((low + high) / 2)
    return nn.Sequential(first, nn.ReLU(), nn.Linear(16, prop.specification.outputs))


def trained(prop: Any, number: int, weight: float, steps: int) -> tuple[nn.Module, int]:
    """The network, and how many of its regions are verified and not vacuously so."""
    torch.manual_seed(number)
    x0, labels = asked(prop, number)
    x, target = data(prop, number, x0)
    model = network(prop, x0)
    optimiser = torch.optim.Adam(model.parameters(), lr=1e-2)
    task = "single-label" if prop.uses_labels else "regression"
    loss = qll.PropertyLoss(
        prop, logic="qll:20", attack="apgd:5,restarts=0", task=task, floor=-0.3, balance=weight,
        learned=0.0,
    )  # fmt: skip
    plain = nn.functional.cross_entropy if prop.uses_labels else nn.functional.mse_loss
    for step in range(1, steps + 1):
        rows = torch.randint(0, len(x), (64,))
        batch, wanted = x[rows], target[rows]
        if labels is not None:  # the points that are asked for are learned, too
            batch, wanted = torch.cat([batch, x0]), torch.cat([wanted, labels])
        value = loss(model, batch, wanted) if weight else plain(model(batch), wanted)
        optimiser.zero_grad()
        value.backward()
        optimiser.step()
        if not weight or step % EVERY or broken(prop, model, number):
            continue
        if proved(prop, model, number) == regions(prop):
            break
    return model, proved(prop, model, number)


def broken(prop: Any, model: nn.Module, number: int) -> bool:
    """Whether an attack falsifies a region: then nobody has to ask for a proof."""
    x, labels = asked(prop, number)
    found = qll.attack(prop, model, x[: regions(prop)], labels, method="apgd:20,restarts=1")
    return bool(found.falsified.any())


def regions(prop: Any) -> int:
    return 1 if prop.is_closed else POINTS


def proved(prop: Any, model: Any, number: int) -> int:
    x, labels = asked(prop, number)
    given = () if prop.is_closed else (x, labels)
    if isinstance(model, nn.Module):
        model = load(model.eval(), input_shape=(width_of(prop),))
    found = qll.verify(prop, model, *given, timeout=10)
    return sum(v.status == "verified" and not v.vacuous for v in found)


def draw(prop: Any, number: int, pair: list[tuple[nn.Module, int]], path: Path) -> None:
    import matplotlib.pyplot as plt
    from PIL import Image

    figure, axes = plt.subplots(1, 2, figsize=(6, 2.6), sharex=True, sharey=True)
    two = bool(prop.sources & {"x2", "y2"})
    for axis, (model, held), title in zip(axes, pair, ("without", "with"), strict=True):
        (_lines if two else _margins)(axis, prop, number, model.eval())
        axis.set_title(f"{title} the rule: {held} of {regions(prop)} proved", fontsize=9)
        axis.tick_params(labelsize=7)
    figure.tight_layout()
    figure.savefig(path, dpi=100)
    plt.close(figure)
    with Image.open(path) as drawn:  # a quarter of the bytes, and nothing that one could see
        small = drawn.convert("RGB").quantize(128)
    small.save(path, optimize=True)


def _names(prop: Any) -> list[str]:
    named = [list(d.names) for d in prop.specification.names if d.kind == "inputs"]
    return named[0] if named else [f"x[{k}]" for k in range(INPUTS)]


@torch.no_grad()
def _margins(axis: Any, prop: Any, number: int, model: nn.Module) -> None:
    """By how much the rule holds over two inputs, the others as at the first data point; for
    inputs that lie in the region."""
    x, labels = asked(prop, number)
    low, high = box(prop, x)
    first, second = (0, 1) if number != 7 else (2, 3)  # those that may be tampered with
    middle = x[0] if not prop.is_closed else (low + high) / 2
    one, other = (torch.linspace(float(low[k]), float(high[k]), GRID) for k in (first, second))
    points = middle.repeat(GRID * GRID, 1)
    points[:, first], points[:, second] = one.repeat(GRID), other.repeat_interleave(GRID)
    given = {"x": points, "x0": middle.expand_as(points), "y0": model(middle[None])}
    given["y0"] = given["y0"].expand(len(points), -1)
    own = None if labels is None else labels[:1].expand(len(points))
    margin = prop.margin(
        model(points), labels=own, **{k: v for k, v in given.items() if k in prop.sources}
    )
    inside = qll.Region.of(prop, given["x0"]).contains({"x": points}, 1e-6)
    shown = margin.clone()
    if prop.is_closed:
        shown[~inside] = float("nan")
    size = float(margin.abs().quantile(0.9)) or 1.0
    ends = [float(e) for e in (one[0], one[-1], other[0], other[-1])]
    axis.imshow(shown.reshape(GRID, GRID).numpy(), origin="lower", extent=ends, aspect="auto",
                cmap="RdBu", vmin=-size, vmax=size)  # fmt: skip
    if not prop.is_closed:
        axis.contour(
            one, other, inside.reshape(GRID, GRID).float(), [0.5], colors="k", linewidths=1
        )
        axis.plot(float(middle[first]), float(middle[second]), "k.", markersize=4)
    names = _names(prop)
    axis.set_xlabel(names[first], fontsize=8)
    axis.set_ylabel(names[second], fontsize=8)


@torch.no_grad()
def _lines(axis: Any, prop: Any, number: int, model: nn.Module) -> None:
    """The output along the input in which the two points differ, for some values of the others."""
    moved = 0 if number == 19 else 2
    along = torch.linspace(0, 1, GRID)
    for row in torch.rand(12, width_of(prop), generator=torch.Generator().manual_seed(1)):
        points = row.repeat(GRID, 1)
        points[:, moved] = along
        axis.plot(along, model(points)[:, 0], linewidth=1, color="#3050a0", alpha=0.7)
    axis.set_xlabel(_names(prop)[moved], fontsize=8)
    axis.set_ylabel("score", fontsize=8)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--json", type=Path)
    given = parser.parse_args()
    wanted = [int(n) for n in given.only.split(",") if n] or list(range(1, len(rules()) + 1))
    FIGURES.mkdir(parents=True, exist_ok=True)
    (ROOT / NETWORKS).mkdir(parents=True, exist_ok=True)
    found = {}
    for number in wanted:
        prop = qll.parse(rules()[number - 1])
        steps = EVERY if given.quick else STEPS
        plain, before = trained(prop, number, 0.0, steps)
        for weight in (5.0, 25.0):
            obeying, after = trained(prop, number, weight, steps)
            if after == regions(prop):
                break
        print(f"rule {number}: {before} -> {after} of {regions(prop)} proved (weight {weight:g})")
        found[number] = {"before": before, "after": after, "of": regions(prop)}
        if not given.quick and after == regions(prop):
            shape = (width_of(prop),)
            export_onnx(obeying.eval(), ROOT / NETWORKS / f"{number:02}.onnx", input_shape=shape)
            pair = [(plain, before), (obeying, after)]
            draw(prop, number, pair, FIGURES / f"{number:02}.png")
    if given.json:
        given.json.write_text(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
