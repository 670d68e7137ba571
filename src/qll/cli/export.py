"""``qll export``: a property at a data point, or a query, in the formats of other verifiers."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qll.cli.answers import JsonFile, store
from qll.cli.completion import complete_rule
from qll.cli.options import Features, Target, data_options, parse_settings
from qll.cli.solver import SOUND
from qll.cli.verify import scale_of
from qll.exchange.recognition import is_query

if TYPE_CHECKING:
    from qll.exchange.document import Document

FORMATS = {"vnnlib": 1, "vnnlib2": 2, "marabou": 0, "vehicle": 0, "qll": 0}


def export(
    prop: Annotated[
        str,
        typer.Argument(
            metavar="PROPERTY",
            autocompletion=complete_rule,
            help="A property, a .qll file or a VNN-LIB query; --to vehicle also a logic (qll:5).",
        ),
    ],
    to: Annotated[str, typer.Option("--to", help=", ".join(FORMATS) + ".")],
    network: Annotated[
        Path | None, typer.Option(help="Of a property: the ONNX file it is about.")
    ] = None,
    data: Annotated[str | None, typer.Option(help="Of a property: whose test point.")] = None,
    target: Target = "",
    features: Features = "",
    data_dir: Annotated[str | None, typer.Option(help="Where the data files are.")] = None,
    index: Annotated[int, typer.Option(help="Which point of the test data.")] = 0,
    mean: Annotated[
        str | None,
        typer.Option(
            help="Of a network of normalised input, as of qll verify; see docs/vnnlib.md."
        ),
    ] = None,
    std: Annotated[str | None, typer.Option(help="Its deviation.")] = None,
    settings: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter: --set delta=0.7.")
    ] = None,
    element: Annotated[
        str | None, typer.Option(help="Replaces the element type of all tensors: real or float32.")
    ] = None,
    out: Annotated[
        Path | None, typer.Option(help="A file (marabou: a folder); otherwise it is printed.")
    ] = None,
    json_path: JsonFile = None,
) -> None:
    """Write a property or query for other verifiers: satisfiable iff the property is violated.
    VNN-LIB is read back and must ask the same.

    Example: qll export not-both --network net.onnx --data dice-rendered --index 3 --to vnnlib
    """
    from qll.exchange.files import read

    _require("--to", to, tuple(FORMATS))
    _require("--element", element, SOUND)
    if to == "vehicle" and (declared := _logic(prop)) is not None:
        _answer(to, [declared], _write([declared], out), json_path)
        return
    if is_query(prop):
        document = read(prop)
    else:
        scales = scale_of(mean, "--mean"), scale_of(std, "--std")
        table = data_options(target, features)
        given = parse_settings(settings)
        document = _asked(prop, network, data, data_dir, table, index, given, scales)
    if to != "vnnlib2" and element != "real":
        _tell_types(document, to)
    match to:
        case "marabou":
            from qll.exchange.marabou import files

            texts = ["\n".join(lines) + "\n" for lines in files(document)]
            written = _write_files(texts, out)
        case "qll":
            written = _write(texts := [_rule(document, network)], out)
        case "vehicle":
            written = _write(texts := [_vehicle(document)], out)
        case _:
            written = _write(texts := [_text(document, FORMATS[to], element)], out)
    _answer(to, texts, written, json_path)


def _answer(to: str, texts: list[str], written: list[Path], json_path: Path | None) -> None:
    """The files that were written, or else their texts."""
    held = {"files": [str(path) for path in written]} if written else {"texts": texts}
    store(json_path, {"format": to, **held})


def _tell_types(document: Document, to: str) -> None:
    """What is lost where a format has no element types."""
    lost = [f"{t.name} {t.element}" for t in document.tensors if not t.is_real]
    if lost:
        names = ", ".join(lost[:4]) + (", ..." if lost[4:] else "")
        said = f"note: {to} has no element types; written as real numbers: {names}"
        typer.echo(f"{said} (--element real says that this is meant)", err=True)


def _write(texts: list[str], out: Path | None) -> list[Path]:
    from qll.files import write_atomically

    (text,) = texts
    if out is None:
        typer.echo(text, nl=False)
        return []
    write_atomically(out, text.encode())
    return [out]


def _write_files(texts: list[str], out: Path | None) -> list[Path]:
    from qll.files import write_atomically, write_error

    written = []
    for number, text in enumerate(texts):
        if out is None:
            typer.echo(f"// {number}\n{text}", nl=False)
            continue
        try:
            out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise write_error(out, error) from error
        written.append(out / f"{number:04d}.txt")
        write_atomically(written[-1], text.encode())
    return written


def _logic(name: str) -> str | None:
    """A logic as Vehicle reads it; None if the name is none of a logic."""
    from qll.exchange.vehicle import logic_lines
    from qll.logics import LOGICS, logic

    if name.partition(":")[0].strip().lower() not in LOGICS:
        return None
    return "\n".join(logic_lines(logic(name))) + "\n"


def _rule(document: Document, network: Path | None) -> str:
    """A closed rule of our own language: to be shown, attacked, trained on and repaired."""
    from qll.exchange.models import attach, files_of
    from qll.exchange.rules import rule_of

    if network is not None:  # which must be one that the query can be about
        attach(document, files_of(document, [str(network)]))
    return rule_of(document)


def _vehicle(document: Document) -> str:
    from qll.exchange.vehicle import lines

    return "\n".join(lines(document)) + "\n"


def _text(document: Document, version: int, element: str | None) -> str:
    from qll.errors import RunError
    from qll.exchange.files import parse
    from qll.exchange.writers import write

    text = "\n".join(write(document, version, element)) + "\n"
    again = parse(text)
    if list(again.bounds.atoms()) != list(document.bounds.atoms()) or (
        again.assertions != document.assertions
    ):
        raise RunError(
            "what was written does not ask the same",
            expected="the same bounds and assertions when it is read back",
            found="others",
            fix="report this query",
        )
    return text


def _asked(
    prop: str,
    network: Path | None,
    data: str | None,
    data_dir: str | None,
    table: dict[str, Any],
    index: int,
    given: dict[str, float],
    scales: tuple[Any, Any],
) -> Document:
    from qll.data import load as load_data
    from qll.errors import InputError
    from qll.networks import load as load_network
    from qll.properties import load, load_fitting
    from qll.verify.api import Problem
    from qll.verify.exported import document_of
    from qll.verify.given import needs_data

    if network is None:
        raise InputError(
            "a property asks about a network",
            expected="--network FILE, and --data NAME unless the property needs no data point",
            found="no network",
            fix="write --network net.onnx --data mnist --index 0",
        )
    handle = load_network(network, mean=scales[0], std=scales[1])
    held = None if data is None else load_data(data, data_dir, **table)
    if held is not None and held.schema is not None:  # names, and the domain
        rule = load_fitting(prop, held.fits, **given)
    else:
        rule = load(prop, outputs=handle.output_size).with_parameters(**given)
    batch: tuple[Any, ...] = (None, None)
    if not rule.is_closed:
        if held is None:
            raise needs_data(rule)
        test = held.test
        if not 0 <= index < len(test):
            raise InputError(
                f"there is no data point {index}",
                expected=f"a number from 0 to {len(test) - 1}",
                found=str(index),
                fix="write --index 0",
            )
        batch = tuple(part.numpy() for part in test.batch(slice(index, index + 1)))
    problem = Problem.of(rule, handle, batch[0], batch[1], timeout=1.0)
    return document_of(problem.query(0, solved=False), handle.normalisation)


def _require(option: str, value: str | None, known: tuple[str, ...]) -> None:
    from qll.errors import InputError
    from qll.registry import suggest

    if value is not None and value not in known:
        raise InputError(
            f"{option} {value} is not known",
            expected="one of " + ", ".join(known),
            found=f"'{value}'",
            fix=suggest(value, list(known)),
        )


def register(app: typer.Typer) -> None:
    app.command()(export)
