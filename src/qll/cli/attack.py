"""``qll attack``: search for counterexamples and keep them, as arrays and as pictures."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qll.cli.answers import JsonFile, store
from qll.cli.completion import complete_data, complete_rule
from qll.cli.options import (
    DATA_HELP,
    Features,
    Target,
    data_options,
    parse_settings,
)

if TYPE_CHECKING:
    from torch import Tensor

    from qll.attacks import AttackResult
    from qll.networks import Network
    from qll.property import Property

EXIT_FALSIFIED = 10  # as of qll verify
_PICTURES = 16
_NAMED = 20  # near-ties


def attack(
    prop: Annotated[
        str,
        typer.Argument(
            metavar="PROPERTY", autocompletion=complete_rule, help="A property or a .qll file."
        ),
    ],
    network: Annotated[Path, typer.Option(help="An ONNX file.")],
    data: Annotated[
        str | None,
        typer.Option(
            autocompletion=complete_data,
            help=DATA_HELP + " A rule without a data point needs none.",
        ),
    ] = None,
    target: Target = "",
    features: Features = "",
    data_dir: Annotated[str | None, typer.Option(help="Where the data files are.")] = None,
    count: Annotated[int, typer.Option(help="Test images to attack; 0 for all.")] = 100,
    logic: Annotated[str, typer.Option(help="Whose loss is driven up.")] = "qll:5",
    method: Annotated[
        str, typer.Option("--attack", help="apgd:STEPS,restarts=N or pgd:STEPS,step=S.")
    ] = "apgd:50,restarts=4",
    mean: Annotated[float | None, typer.Option(help="If the network takes normalised input.")] = (
        None
    ),
    std: Annotated[float | None, typer.Option(help="Its deviation.")] = None,
    seed: Annotated[int, typer.Option(help="Seeds the random starts.")] = 0,
    out: Annotated[Path | None, typer.Option(help="A folder for the counterexamples.")] = None,
    json_path: JsonFile = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter: --set epsilon=0.1.")
    ] = None,
) -> None:
    """Attack a network on test images, or, if the rule needs no data point, once. A counterexample
    lies in the region and violates the property as ONNX Runtime runs the network. Exit code 0: none
    was found, which proves nothing, 10: some were.

    Example: qll attack not-both --network net.onnx --data dice-rendered --out found
    """
    from qll.attacks import attack as read_attack
    from qll.attacks.shipped import attack_shipped
    from qll.cli.closed import witness_lines
    from qll.kernels.announce import announced
    from qll.networks import load as load_network

    handle = load_network(network, mean=mean, std=std)
    table = data_options(target, features)
    given, x, labels = _asked(prop, handle, data, data_dir, table, count, parse_settings(settings))
    with announced(lambda text: typer.echo(text, err=True)):
        found = attack_shipped(
            read_attack(method), handle, given, x, labels, logic=logic, seed=seed
        )
    if out is not None:
        _keep(out, x, labels, found)
    falsified = int(found.falsified.sum())
    summary = {
        "attacked": len(x),
        "falsified": falsified,
        "not_falsified": len(x) - falsified,
        "near_ties": int(found.near_ties.sum()),
        "worst_margin": float(found.margins.min()) if len(x) else None,
        "out": None if out is None else str(out),
    }
    typer.echo(f"{falsified} of {len(x)} regions falsified, {len(x) - falsified} not falsified")
    for row in found.near_ties.nonzero()[:_NAMED, 0].tolist():
        typer.echo(
            f"  point {row}: near-tie: margin {float(found.margins[row]):.2g} in float32, "
            "not violated in float64"
        )
    more = int(found.near_ties.sum()) - _NAMED
    if more > 0:
        typer.echo(f"  and {more} near-ties more")
    if data is None and falsified:
        first, *rest = (found.points[name][0].flatten().tolist() for name in sorted(found.points))
        second = rest[0] if rest else None
        for line in witness_lines(given, first, second, (handle, handle), all_in="--out"):
            typer.echo(line)
    if out is not None and falsified:
        typer.echo(f"counterexamples: {out}")
    store(json_path, summary)
    if falsified:
        raise typer.Exit(EXIT_FALSIFIED)


def _asked(
    prop: str,
    network: Network,
    data: str | None,
    data_dir: str | None,
    table: dict[str, Any],
    count: int,
    settings: dict[str, Any],
) -> tuple[Property, Tensor, Tensor | None]:
    """The rule, the points around which it is attacked and their labels; for one that is the same
    at all of them a single point, which it does not depend on."""
    import torch

    from qll.data import load as load_data
    from qll.properties import load_fitting
    from qll.verify.given import needs_data

    if data is None:
        rule = load_fitting(prop, network.output_size, **settings)
        if not rule.is_closed:
            raise needs_data(rule)
        return rule, torch.zeros(1, *network.input_shape), None
    images = load_data(data, data_dir, **table)
    fits = network.output_size if images.schema is None else images.schema
    return load_fitting(prop, fits, **settings), *images.test.batch(slice(0, count or None))


def _keep(out: Path, x: Tensor, labels: Tensor | None, found: AttackResult) -> None:
    import numpy as np

    from qll.data.pictures import save_comparison
    from qll.errors import MissingExtra
    from qll.files import write_arrays, write_error

    rows = np.flatnonzero(found.falsified.numpy())
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise write_error(out, error) from error
    arrays = {
        "index": rows,
        "clean": x.numpy()[rows],
        **({} if labels is None else {"labels": labels.numpy()[rows]}),
        "outputs": found.outputs.numpy()[rows],
        "margin": found.margins.numpy()[rows],
        **{f"attacked_{name}": t.numpy()[rows] for name, t in found.points.items()},
    }
    write_arrays(out / "counterexamples.npz", arrays)
    shown = rows[:_PICTURES]
    if not len(shown) or x.dim() != 4 or x.shape[1] not in (1, 3):
        return
    captions = [f"image {row}, margin {found.margins[row]:.3g}" for row in shown.tolist()]
    try:
        save_comparison(
            out / "counterexamples.png",
            x.numpy()[shown],
            found.x.numpy()[shown],
            captions=captions,
        )
    except MissingExtra:
        typer.echo("no pictures: pip install 'qll[train]' to draw them", err=True)


def register(app: typer.Typer) -> None:
    app.command()(attack)
