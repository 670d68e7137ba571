"""The command line of the VNN-LIB standard (2.1, chapter 5): how other tools call a solver.

``qll verify query.vnnlib --network f=net.onnx --timeout 60`` prints ``sat``, ``unsat``, ``unknown``
or ``timed-out``, and after ``sat`` the assignment; ``qll supports --...`` says what it can do.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qll.cli.answers import QUIET, QUIET_HELP, JsonFile, quieten, require_writable, store
from qll.cli.options import require_seconds
from qll.cli.pipes import PipedCommand
from qll.errors import InputError, QllError, RunError
from qll.exchange.recognition import is_query

if TYPE_CHECKING:
    from qll.exchange.document import Document

NAME = "qll"
# Element types for which a verdict is sound: the standard asks for an error for all others.
SOUND = ("real", "float32")
NO_LIMIT = 1e9  # seconds


def query_arguments(arguments: Sequence[str]) -> list[str] | None:
    """The arguments of a query, with or without the word ``verify``; None for other commands."""
    if not arguments:
        return None
    rest = list(arguments[1:] if arguments[0] == "verify" else arguments)
    if arguments[0] != "verify":
        return rest if is_query(rest[0]) else None
    # What follows an option is its value, which is not opened here: a network may be slow to read.
    positional = [a for before, a in pairwise(["", *rest]) if not before.startswith("-")]
    # A folder is no property either; as a query it is named for what it is.
    found = any(is_query(argument) for argument in positional)
    return rest if found or any(Path(a).is_dir() for a in positional[:1]) else None


def age() -> float:
    """Seconds since this process began, by the system's record of it; 0 if there is none."""
    try:
        fields = Path("/proc/self/stat").read_text(encoding="ascii").rpartition(")")[2].split()
        began = int(fields[19]) / os.sysconf("SC_CLK_TCK")
        return max(0.0, time.clock_gettime(time.CLOCK_BOOTTIME) - began)
    except (OSError, ValueError, IndexError, AttributeError):
        return 0.0


def solve(
    context: typer.Context,
    query: Annotated[Path, typer.Argument(metavar="QUERY", help="A VNN-LIB file, version 1 or 2.")],
    network: Annotated[
        list[str] | None,
        typer.Option(help="NAME=FILE, an ONNX file for each declared network."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(help="Seconds for the query.", show_default="no limit")
    ] = NO_LIMIT,
    serialise_assignments: Annotated[
        Path | None,
        typer.Option(
            "--serialise-assignments",
            "--assignments",
            help="A folder for the assignment, one TensorProto for each variable.",
        ),
    ] = None,
    backend: Annotated[str, typer.Option(help="bab (our own), highs or marabou.")] = "bab",
    arithmetic: Annotated[
        str | None,
        typer.Option(help="float32 for a query of reals; one of float32 is decided in it anyway."),
    ] = None,
    jobs: Annotated[
        int, typer.Option(help="Processes for a query of few inputs that one does not decide soon.")
    ] = 1,
    seed: Annotated[int, typer.Option(help="Seeds the random starts.")] = 0,
    out: JsonFile = None,
    quiet: Annotated[bool, typer.Option(QUIET, callback=quieten, help=QUIET_HELP)] = False,
    certificate: Annotated[Path | None, typer.Option(hidden=True)] = None,
) -> None:
    """Decide a VNN-LIB query: sat, unsat, unknown or timed-out, and after sat the assignment.

    Example: qll verify query.vnnlib --network f=net.onnx --timeout 60
    """
    # The query's time is that of its process, if the process is for nothing else (context.obj).
    began = time.monotonic() - (context.obj or 0.0)
    require_seconds(timeout)
    if certificate is not None:
        raise InputError(
            "a query has no certificate: its verdict has the standard's form",
            expected="a rule, for --certificate",
            found="a VNN-LIB query",
            fix=f"make a rule of it, qll export {query} --to qll --network NET --out rule.qll, and "
            f"qll verify rule.qll --network NET --certificate {certificate}",
        )
    if serialise_assignments is not None:
        require_writable(serialise_assignments, folder=True)
    answer = _Answer(query, out, began)
    with _deadline(timeout - (time.monotonic() - began), answer):
        from qll.exchange import assignment
        from qll.exchange.files import read
        from qll.exchange.models import attach, files_of
        from qll.verify.documents import decide

        document = read(query)
        numbers = arithmetic_of(document, arithmetic)
        files = files_of(document, network or [])
        answer.asked(files, numbers)
        attached = attach(document, files, numbers)
        left = timeout - (time.monotonic() - began)
        decision = decide(
            attached.document,
            attached.network,
            seconds=left,
            backend=backend,
            seed=seed,
            arithmetic=numbers,
            jobs=jobs,
        )
        lines, values, failure = [str(decision.answer)], dict[str, Any](), None
        if decision.witness is not None:
            x = attached.all_inputs(decision.witness)
            y = attached.outputs(decision.witness)
            values = {"inputs": x.tolist(), "outputs": y.tolist()}
            written = False
            if serialise_assignments is not None:
                try:
                    assignment.serialise(document, x, y, serialise_assignments)
                    written = True
                except RunError as error:  # the answer is given all the same
                    failure = error
            if not written:
                lines += assignment.lines(document, x, y)
        notes = [*attached.notes, *decision.notes]
        for note in notes:
            typer.echo(f"note: {note}", err=True)
        answer(lines, notes=notes, **values)
    if failure is not None:
        raise failure


def arithmetic_of(document: Document, asked: str | None = None) -> str | None:
    """In which numbers to decide: those that the query declares, if they are some of ours. What the
    standard asks of a solver that computes in others is an error."""
    from qll.verify.arithmetic import check_arithmetic

    check_arithmetic(asked)
    kinds = {tensor.element.lower() for tensor in document.tensors}
    for tensor in document.tensors:
        element = tensor.element.lower()
        if element not in SOUND or len(kinds) > 1 or (element, asked) == ("float32", "real"):
            raise InputError(
                f"no verdict about '{tensor.name}' in {tensor.element} would be sound: "
                "networks are decided in real numbers or in float32, all tensors in one of them",
                expected="the element type real, or float32 for all tensors",
                found=tensor.element if len(kinds) == 1 else ", ".join(sorted(kinds)),
                fix="declare every tensor as real to accept that; "
                "'qll export QUERY --to vnnlib2 --element real' writes such a query",
                where=tensor.place or None,
            )
    return "float32" if "float32" in kinds else asked


@contextmanager
def _deadline(seconds: float, answer: _Answer) -> Iterator[None]:
    """Whatever is being computed when the time is over, the answer is then ``timed-out``."""

    def stop() -> None:
        try:
            answer(["timed-out"])
        except QllError as error:  # the file could not be written
            typer.echo(str(error), err=True)
        sys.stdout.flush()
        os._exit(0)

    timer = threading.Timer(min(max(seconds, 0.0), threading.TIMEOUT_MAX), stop)
    timer.daemon = True
    timer.start()
    try:
        yield
    finally:
        timer.cancel()


class _Answer:
    """Given once, by whoever is first: printed, then written as ``--json`` asks."""

    def __init__(self, query: Path, out: Path | None, began: float) -> None:
        self._query, self._out, self._began = query, out, began
        self._lock = threading.Lock()
        self._about: dict[str, Any] = {}

    def asked(self, networks: Mapping[str, Path], arithmetic: str | None) -> None:
        """For ``qll explain``: what the answer is about."""
        self._about = {"arithmetic": arithmetic}
        if self._out is not None:
            self._about["sha256"] = _sha256(self._query)
            self._about["networks"] = {
                name: {"file": str(path), "sha256": _sha256(path)}
                for name, path in networks.items()
            }

    def __call__(self, lines: list[str], **values: Any) -> None:
        if not self._lock.acquire(blocking=False):
            threading.Event().wait()  # the other thread is about to end the process
        typer.echo("\n".join(lines))
        content = {
            "query": self._query.name,
            "file": str(self._query),
            **self._about,
            "answer": lines[0],
            "inputs": None,
            "outputs": None,
            "notes": [],
            **values,
            "seconds": round(time.monotonic() - self._began, 3),
        }
        store(self._out, content)


def _sha256(path: Path) -> str | None:
    """None of a file that cannot be read, which is told where it is wanted."""
    import hashlib

    try:
        return hashlib.sha256(path.read_bytes()).hexdigest()
    except OSError:
        return None


# --- capabilities ---

_CAPABILITIES = (
    "onnx-opset-versions",
    "onnx-element-types",
    "onnx-operators",
    "vnnlib-versions",
    "hidden-node-theories",
    "multiple-input-output-theories",
    "multiple-network-theories",
    "multiple-node-comparison-theories",
    "arithmetic-complexity-theories",
    "optimised-disjunctive-reasoning",
    "serialise-assignments",
)


def capability(name: str) -> list[str]:
    """The lines that ``qll supports --NAME`` prints."""
    match name:
        case "onnx-opset-versions":
            from qll.networks.onnx_checks import OPSETS

            return [str(OPSETS[0]), str(OPSETS[-1])]
        case "onnx-element-types":
            return list(SOUND)
        case "onnx-operators":
            from qll.networks.onnx_reader import OPERATORS

            return sorted(OPERATORS)
        case "vnnlib-versions":
            return ["1.0", "2.1"]
        case "hidden-node-theories":
            return ["NH", "H"]
        case "multiple-input-output-theories":
            return ["SIO", "MIO"]
        case "multiple-network-theories":
            return ["SNET", "MENET", "MINET", "MNET"]
        case "multiple-node-comparison-theories":
            return ["SNC", "MNC"]
        case "arithmetic-complexity-theories":
            return ["BND", "COUT", "LIN"]
        case _:
            return ["true"]


def supports(context: typer.Context, out: JsonFile = None) -> None:
    """What the verifier can do, as the VNN-LIB standard asks: one capability for each call.

    Example: qll supports --onnx-operators
    """
    from qll.registry import suggest

    # The standard's own example misspells this one.
    spelled = {"multiple-inputs-output-theories": "multiple-input-output-theories"}
    names = [spelled.get(a.removeprefix("--"), a.removeprefix("--")) for a in context.args]
    if not names or any(name not in _CAPABILITIES for name in names):
        wrong = next((name for name in names if name not in _CAPABILITIES), None)
        raise InputError(
            "it is not clear which capability is asked for",
            expected="one of " + ", ".join(f"--{name}" for name in _CAPABILITIES),
            found="none" if wrong is None else f"--{wrong}",
            fix="write qll supports --onnx-operators"
            if wrong is None
            else suggest(wrong, sorted(_CAPABILITIES)),
        )
    found = {name: capability(name) for name in names}
    for lines in found.values():
        for line in lines:
            typer.echo(line)
    store(out, found)


def build_solver() -> typer.Typer:
    """The command line of a query, which shares nothing with that of our own properties."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    app.command(cls=PipedCommand)(solve)
    return app


def register(app: typer.Typer) -> None:
    app.command(
        context_settings={"allow_extra_args": True, "ignore_unknown_options": True},
        epilog="Capabilities: " + ", ".join(f"--{name}" for name in _CAPABILITIES) + ".",
    )(supports)
