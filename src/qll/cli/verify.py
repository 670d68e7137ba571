"""``qll verify``: prove or refute a property around every data point."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from qll.cli.answers import json_option, prints_json, store
from qll.cli.board import Board
from qll.cli.closed import closed_lines
from qll.cli.completion import complete_data, complete_rule
from qll.cli.options import (
    DATA_HELP,
    Features,
    Target,
    data_options,
    parse_settings,
    require_seconds,
)

EXIT_FALSIFIED = 10
EXIT_UNKNOWN = 11
EXIT_UNCERTIFIED = 12
# Points of which the details are shown; the rest are in --json.
_SHOWN = 20
# Seconds for a data point of many, and for the only question that is asked.
_EACH, _ONCE = 10.0, 60.0
# Test data at which it is looked whether the network decides anything.
_LOOKED_AT = 1000


def verify(
    prop: Annotated[
        str,
        typer.Argument(
            metavar="PROPERTY", autocompletion=complete_rule, help="A property or a .qll file."
        ),
    ],
    network: Annotated[Path, typer.Option(help="An ONNX file.")],
    data: Annotated[str | None, typer.Option(autocompletion=complete_data, help=DATA_HELP)] = None,
    target: Target = "",
    features: Features = "",
    data_dir: Annotated[str | None, typer.Option(help="Where the data files are.")] = None,
    images: Annotated[Path | None, typer.Option(help="Instead of --data: an IDX file.")] = None,
    labels: Annotated[Path | None, typer.Option(help="Labels of --images, an IDX file.")] = None,
    count: Annotated[int, typer.Option(help="Data points to verify; 0 for all.")] = 100,
    epsilon: Annotated[
        str | None, typer.Option(help="The property's radius: 0.1 or 4/255.")
    ] = None,
    mean: Annotated[
        str | None,
        typer.Option(
            help="For a network of normalised input: 0.1307 or "
            "one number for each channel, with commas."
        ),
    ] = None,
    std: Annotated[str | None, typer.Option(help="Its deviation.")] = None,
    against: Annotated[
        Path | None, typer.Option(help="The network of x2, if it is another one: an ONNX file.")
    ] = None,
    timeout: Annotated[
        float | None,
        typer.Option(help="Seconds for each data point: 10; for a rule that is asked once: 60."),
    ] = None,
    memory: Annotated[
        float | None,
        typer.Option(help="GB for each process; by default half of what is free, shared by all."),
    ] = None,
    jobs: Annotated[int, typer.Option(help="Processes; 0 for one on each core.")] = 0,
    engine: Annotated[str, typer.Option(help="local (processes), dask or ray.")] = "local",
    scheduler: Annotated[
        str | None, typer.Option(help="The cluster's address: tcp://HOST:8786 for dask.")
    ] = None,
    backend: Annotated[
        str, typer.Option(help="bab (our own), torch (on a GPU if there is one), highs or marabou.")
    ] = "bab",
    cross_check: Annotated[
        str | None, typer.Option(help="A second backend; a contradiction is an error.")
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="A folder for the evidence; see qll audit.")
    ] = None,
    certified: Annotated[
        bool, typer.Option("--certified", help="Believe only what the checker confirms.")
    ] = False,
    arithmetic: Annotated[
        str | None,
        typer.Option(help="float32: about every evaluation in it; real: about no other."),
    ] = None,
    fast: Annotated[
        bool, typer.Option("--fast", help="Take the prover's word: do not ask the checker.")
    ] = False,
    seed: Annotated[int, typer.Option(help="Seeds the random starts.")] = 0,
    out: Annotated[
        Path | None,
        json_option("Write verdicts here, a killed run resumes from it; - prints them alone."),
    ] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter: --set delta=0.7.")
    ] = None,
) -> None:
    """Verify a network around test images, or, if the rule needs no data point, once. Exit code
    0: all verified, 10: some falsified, 11: none falsified but some unknown, 12: all verified but
    not every certificate that --certificate asks for could be written, 2: wrong use.

    Example: qll verify not-both --network net.onnx --data dice-rendered --count 50
    """  # fmt: skip
    from qll import limits
    from qll.kernels.announce import announced
    from qll.networks import load as load_network
    from qll.verify.api import Problem, decide_all
    from qll.verify.backend import BACKENDS
    from qll.verify.journal import Journal
    from qll.workers import Workers

    workers = Workers(engine, jobs, scheduler)

    handle = load_network(network, mean=scale_of(mean, "--mean"), std=scale_of(std, "--std"))
    table = data_options(target, features)
    given = dict(parse_settings(settings))
    if epsilon is not None:
        given.update(parse_settings([f"epsilon={epsilon}"]))

    def read_points() -> tuple[Any, Any, Any]:
        return _points(data, data_dir, images, labels, count, handle.output_size, table)

    asked = _ask(prop, handle, given, read_points, has_data=data is not None or images is not None)
    if timeout is None:
        timeout = _ONCE if asked.closed else _EACH
    require_seconds(timeout)
    problem = Problem.of(
        asked.rule,
        handle,
        asked.points,
        asked.truth,
        timeout=timeout,
        memory=None if memory is None else memory * 1e9,
        backend=backend,
        cross_check=cross_check,
        fast=fast,
        certified=certified,
        certificates=certificate,
        seed=seed,
        arithmetic=arithmetic,
        mean=scale_of(mean, "--mean"),
        std=scale_of(std, "--std"),
        against=None if against is None else load_network(against).source,
    )
    problem = problem.first_query()  # names a bad region or formula before anything is written
    if certificate is not None or certified:
        _warn(handle, arithmetic)
    journal = Journal(None if prints_json(out) else out, problem)
    if len(problem):
        problem.write_claim()
    with _resumable(out), journal, Board(len(problem), journal.known) as board:
        left = [i for i in range(len(problem)) if i not in journal.known]
        with announced(board.tell):
            if left and workers.is_local:
                with suppress(limits.OutOfTime, limits.OutOfMemory):  # said of each query
                    # Once, in sight, and not in each process.
                    BACKENDS[backend]().prepare(problem.query(0))
                board.began = time.monotonic()
            for index, verdict in decide_all(problem, left, workers=workers):
                journal.add(index, verdict)
                board.add(verdict.as_json()["status"])
    other = handle if against is None else load_network(against)
    wants = certificate is not None
    code = _conclude(journal, asked, (handle, other), seconds=timeout, wants_certificates=wants)
    if prints_json(out):
        store(out, journal.content)
    if code:
        raise typer.Exit(code)


@dataclass(frozen=True, eq=False)
class _Asked:
    """A rule, and around which points: none, where it is closed."""

    rule: Any
    points: Any = None
    truth: Any = None
    data: Any = None

    @property
    def closed(self) -> bool:
        return self.points is None

    @property
    def schema(self) -> Any:
        return None if self.data is None else self.data.schema


def _ask(
    prop: str,
    network: Any,
    given: dict[str, float],
    read_points: Callable[[], tuple[Any, Any, Any]],
    *,
    has_data: bool,
) -> _Asked:
    from qll.properties import load_fitting

    if not has_data:
        rule = load_fitting(prop, network.output_size, **given)
        if rule.is_closed:
            return _Asked(rule)
    points, truth, data = read_points()
    schema = None if data is None else data.schema
    rule = load_fitting(prop, network.output_size if schema is None else schema, **given)
    if schema is not None and rule.is_closed:  # the table has given it its names
        return _Asked(rule, data=data)
    return _Asked(rule, points, truth, data)


def _conclude(
    journal: Any, asked: _Asked, networks: Any, *, seconds: float, wants_certificates: bool
) -> int:
    """What is said at the end, and the exit code."""
    known = journal.known
    statuses = [row["status"] for row in known.values()]
    tally = {s: statuses.count(s) for s in ("verified", "falsified", "unknown")}
    vacuous = sum(bool(row.get("vacuous")) for row in known.values())
    if asked.closed:
        lines = closed_lines(asked.rule, known[0], networks)
    else:
        lines = [_summary(tally, vacuous), *_details(known, asked.points, asked.schema)]
    if tally["verified"] > vacuous:
        lines.insert(1, _rests_on(known))
    for line in [*lines, *_advice(known, seconds), *_constant(networks[0], asked.data)]:
        typer.echo(line)
    _stop_the_line(known)
    missing = _missing(known) if wants_certificates else {}
    for reason, numbers in missing.items():
        which = _listed(numbers)
        typer.echo(f"no certificate for {len(numbers)} verdicts (points {which}): {reason}")
    journal.finish({**tally, "vacuous": vacuous})
    if tally["falsified"]:
        return EXIT_FALSIFIED
    if tally["unknown"]:
        return EXIT_UNKNOWN
    return EXIT_UNCERTIFIED if missing else 0


def _advice(known: dict[int, dict[str, Any]], seconds: float) -> list[str]:
    """What to do about each reason for an ``unknown``; a refused proof is told apart."""
    from qll.verify.explanation import ADVICE
    from qll.verify.verdict import Reason

    reasons = {row["reason"] for row in known.values() if row["status"] == "unknown"}
    advice = {**ADVICE, Reason.REFUSED: ""}
    advice[Reason.TIME] = (
        f"--timeout {6 * seconds:g} (it was {seconds:g}), a smaller region, or train on the "
        "rule's bounds (--method small-box): such networks are decided many times faster"
    )
    said = ((reason, advice.get(reason, "")) for reason in sorted(reasons))
    return [f"Fix ({reason}): {text}" for reason, text in said if text]


def _constant(network: Any, found: Any) -> list[str]:
    """A network that decides nothing obeys almost any rule: that is said beside a proof."""
    from qll.metrics import constant_answer

    if found is None or found.shape != tuple(network.input_shape):
        return []
    import torch

    outputs = torch.as_tensor(network.runtime(found.test.inputs[:_LOOKED_AT]))
    if outputs.shape[1:] != (found.outputs,):
        return []
    said = constant_answer(outputs, task=found.task)
    return [] if said is None else [f"note: on these data the network decides nothing: {said}"]


def _summary(tally: dict[str, int], vacuous: int) -> str:
    """CSat is the share of those regions that say something of the network."""
    asked, proved = sum(tally.values()) - vacuous, tally["verified"] - vacuous
    line = f"{proved} verified, {tally['falsified']} falsified, {tally['unknown']} unknown"
    line += f" of {asked} (CSat {100.0 * proved / asked:.1f} %)" if asked else " of 0"
    if vacuous:
        line += (
            f"; {vacuous} more hold{'s' if vacuous == 1 else ''} vacuously: the data point makes "
            "the premise false, whatever the network computes"
        )
    return line


def _listed(numbers: list[int]) -> str:
    return ", ".join(map(str, numbers[:_SHOWN])) + (", ..." if numbers[_SHOWN:] else "")


def _rests_on(known: dict[int, dict[str, Any]]) -> str:
    """How many proofs the checker has confirmed, and why not the others."""
    from qll.verify.verdict import Evidence

    proved = [row for row in known.values() if row["status"] == "verified" and not row["vacuous"]]
    checked = sum(row.get("evidence") == Evidence.CHECKED for row in proved)
    line = f"{checked} of {len(proved)} proofs confirmed by the independent checker"
    if checked == len(proved):
        return line
    why = {row.get("uncertified") or "" for row in proved if row["evidence"] != Evidence.CHECKED}
    said = "; ".join(sorted(why - {""}))
    return f"{line}; the others are the prover's word" + (f": {said}" if said else "")


def _stop_the_line(known: dict[int, dict[str, Any]]) -> None:
    """A proof that the checker refuses means that one of the two is wrong."""
    from qll.verify.verdict import Reason

    refused: dict[str, list[int]] = {}
    for i in sorted(known):
        if known[i]["reason"] == Reason.REFUSED:
            refused.setdefault(known[i].get("uncertified") or "not known", []).append(i)
    for reason, numbers in refused.items():
        typer.echo(
            f"REFUSED: the checker does not confirm {len(numbers)} of the prover's answers (points "
            f"{_listed(numbers)}): {reason}.\nOne of the two is wrong, so these count as unknown. "
            "Fix: report it, with the network, the property and the points.",
            err=True,
        )


def _warn(network: Any, arithmetic: str | None) -> None:
    """Before any work: what the checker will not confirm."""
    from qll.verify.evidence import obstacle

    found = obstacle(network, arithmetic)
    if found is not None:
        typer.echo(f"no certificate can be written for this network: {found}", err=True)


def _details(known: dict[int, dict[str, Any]], points: Any, schema: Any = None) -> list[str]:
    """Where the rule broke, and why nothing was decided, for the first points."""
    import numpy as np

    from qll.reports.moved import describe_move

    lines = []
    for i in sorted(known):
        row = known[i]
        if row["status"] == "unknown":
            bound = row.get("bound")
            short = "" if bound is None or bound > 0 else f" (bound {bound:.3g}, needed above 0)"
            detail = f" ({row['detail']})" if row.get("detail") else ""
            lines.append(f"  point {i}: unknown: {row['reason']}{detail}{short}")
        elif row["status"] == "falsified" and row.get("witness") is not None:
            if schema is not None:
                before = np.asarray(points[i], float).reshape(-1).tolist()
                moves = describe_move(schema, before, np.ravel(row["witness"]).tolist())
                lines.append(f"  point {i}: falsified: {_broke(row)}{moves}")
                continue
            moved = np.abs(np.array(row["witness"]) - np.asarray(points[i], float).reshape(-1))
            lines.append(
                f"  point {i}: falsified: {_broke(row)}the witness moves {int((moved > 0).sum())} "
                f"of {moved.size} inputs, by at most {moved.max(initial=0.0):.3g}"
            )
    more = len(lines) - _SHOWN
    return lines if more <= 0 else [*lines[:_SHOWN], f"  and {more} more: see --json"]


def _broke(row: dict[str, Any]) -> str:
    """Which comparison of the rule, and by how much."""
    return f"{row['detail']}; " if row.get("detail") else ""


def _missing(known: dict[int, dict[str, Any]]) -> dict[str, list[int]]:
    """Decided points without a certificate, by reason; a vacuous one claims nothing."""
    found: dict[str, list[int]] = {}
    for i in sorted(known):
        row = known[i]
        decided = row["status"] != "unknown" and not row.get("vacuous")
        if (decided and not row.get("certificate")) or row.get("uncertified"):
            found.setdefault(row.get("uncertified") or "not known", []).append(i)
    return found


def scale_of(text: str | None, option: str) -> Any:
    import numpy as np

    from qll.errors import InputError

    if text is None:
        return None
    try:
        values = [float(part) for part in text.split(",")]
    except ValueError:
        raise InputError(
            f"{option} is not a number",
            expected="0.1307, or numbers with commas, one for each channel",
            found=f"'{text}'",
            fix=f"write {option} 0.1307",
        ) from None
    return np.array(values) if len(values) > 1 else values[0]


def _points(
    data: str | None,
    data_dir: str | None,
    images: Path | None,
    labels: Path | None,
    count: int,
    outputs: int,
    table: dict[str, Any],
) -> tuple[Any, Any, Any]:
    """Raw inputs and their labels (multi-hot where an image has several), and the data set."""
    import numpy as np

    from qll.data import load as load_data
    from qll.data.idx import read_idx
    from qll.errors import InputError

    if (data is None) == (images is None):
        raise InputError(
            "it is not clear which data points to verify",
            expected="either --data or --images; a rule without x0, y0 and labels needs neither",
            found="both" if data else "neither",
            fix="pass --data mnist, or --images I.idx --labels L.idx",
        )
    if data is not None:
        found = load_data(data, data_dir, **table)
        batch = found.test.batch(slice(0, count or None))
        truth = None if found.task == "regression" else batch[1].numpy()
        return batch[0].numpy(), truth, found
    points = np.asarray(read_idx(images))[: count or None]  # type: ignore[arg-type]
    points = points / 255.0 if points.dtype == np.uint8 else points.astype(np.float64)
    if points.ndim == 3:
        points = points[:, None]
    truth = None if labels is None else np.asarray(read_idx(labels))[: count or None]
    if truth is not None and truth.ndim == 2 and truth.shape[1] != outputs:
        # lists of class indices, as the faces that a picture of a die shows
        hot = np.zeros((len(truth), outputs), dtype=np.int64)
        np.put_along_axis(hot, truth.astype(np.int64), 1, axis=1)
        truth = hot
    if truth is not None and len(truth) != len(points):
        raise InputError(
            "there are not as many labels as images",
            expected=f"{len(points)} labels",
            found=f"{len(truth)}",
            fix="pass the labels of these images",
        )
    return points, truth, None


@contextmanager
def _resumable(out: Path | None) -> Iterator[None]:
    """Whoever stops it is told how to go on."""
    try:
        yield
    except KeyboardInterrupt:
        kept = None if out is None else out.with_name(f"{out.name}.partial")
        if kept is not None and kept.exists():
            typer.echo(f"{kept} holds what is decided: the same command goes on from it.", err=True)
        raise


def register(app: typer.Typer) -> None:
    app.command()(verify)
