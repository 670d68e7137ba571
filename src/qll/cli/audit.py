"""``qll audit``: check the certificates of a folder without believing who wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qll.cli.answers import JsonFile, fail, store

if TYPE_CHECKING:
    from qll.audit import Answer, Expected

EXIT_NOT_CONFIRMED = 12
SUFFIX = ".qllcert"
MEANING = (
    "Confirmed means: in real arithmetic on the stored weights (or in every float32 evaluation,\n"
    "if that is the arithmetic stated), every point of the region satisfies the property\n"
    "(verified), or the witness lies in the region and strictly violates it (falsified)."
)
OWN = (
    "These claims are the certificates' own. To be sure that they are yours, write down what you\n"
    "expect and pass it with --claim FILE."
)
MOST_TOLD = 10  # certificates that are told one by one; of more, the first and what is wrong
FIRST_TOLD = 3


def audit(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Of qll verify --certificate.")],
    claim: Annotated[
        Path | None, typer.Option(help="What you expect to be proved, a TOML file you wrote.")
    ] = None,
    network: Annotated[
        Path | None, typer.Option(help="The ONNX file that the verdicts must be about.")
    ] = None,
    against: Annotated[
        Path | None, typer.Option(help="The network of x2, where it is another one.")
    ] = None,
    every: Annotated[
        bool, typer.Option("--all", help="Tell every certificate, also where there are many.")
    ] = False,
    out: JsonFile = None,
) -> None:
    """Check every certificate of a folder. Exit code 0: all confirmed, 12: some not (or a point of
    the claim without one), 2: wrong use.

    Example: qll audit certificates --claim mine.toml
    """  # fmt: skip
    from qll.audit import read_claim
    from qll.audit.statement import plain

    paths, given = _certificates(folder), (_network(network), _network(against, "--against"))
    expected = None if claim is None else read_claim(claim)
    typer.echo(MEANING if expected is not None else f"{MEANING}\n{OWN}")
    rows, said, found, left = list[dict[str, Any]](), set[str](), set[int](), 0
    for path in paths:
        answer, row = _check(folder, path, given, expected)
        if row is not None:
            found.add(row)
        shared = own = ""
        if answer.claim is not None:
            shared, own = answer.claim.shared, answer.claim.own
        row_of = {"certificate": path.name, **answer._asdict(), "claim": shared, "point": own}
        rows.append(row_of)
        if shared and shared not in said:
            said.add(shared)
            typer.echo(f"\n{shared}\n")
        word = "confirmed" if answer.confirmed else "NOT CONFIRMED"
        line = f"{path.name}: {answer.verdict}: {word}: {answer.reason[:2000]}"
        told = "\n    ".join(filter(None, (plain(line), own)))
        if not answer.confirmed:
            fail(told)
        elif every or len(paths) <= MOST_TOLD or len(rows) <= FIRST_TOLD:
            typer.echo(told)
        else:
            left += 1
    if left:
        typer.echo(f"and {left} more, all confirmed: --all tells each with its data point and box")
    confirmed = [row for row in rows if row["confirmed"]]
    for verdict in ("verified", "falsified", "unknown"):
        count = sum(row["verdict"] == verdict for row in rows)
        if count:
            good = sum(row["verdict"] == verdict for row in confirmed)
            typer.echo(f"{verdict}: {good} of {count} confirmed")
    missing = [] if expected is None else sorted({*range(len(expected.points))} - found)
    if missing:
        some = ", ".join(map(str, missing[:10])) + (", ..." if len(missing) > 10 else "")
        total = 0 if expected is None else len(expected.points)
        fail(f"{len(missing)} of {total} points of the claim are not confirmed: {some}")
    store(out, {"certificates": rows, "missing": missing})
    if missing or len(confirmed) < len(rows):
        raise typer.Exit(EXIT_NOT_CONFIRMED)


def _certificates(folder: Path) -> list[Path]:
    from qll.errors import InputError

    paths = sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []
    if not paths:
        raise InputError(
            f"there is no certificate in {folder}",
            expected=f"a folder with files *{SUFFIX}",
            found="none" if folder.is_dir() else "no such folder",
            fix="write some with qll verify --certificate DIR",
        )
    return paths


def _network(path: Path | None, option: str = "--network") -> bytes | None:
    from qll.audit.onnx_file import network_bytes
    from qll.errors import InputError

    try:
        return None if path is None else network_bytes(path)
    except OSError as error:
        raise InputError(
            f"the network {path} cannot be read",
            expected="an ONNX file",
            found=str(error.strerror or error),
            fix=f"check the path given to {option}",
        ) from error


def _check(
    folder: Path, path: Path, given: tuple[bytes | None, bytes | None], expected: Expected | None
) -> tuple[Answer, int | None]:
    """The answer, and which point of the claim is thereby confirmed."""
    from qll.audit import Answer, audit
    from qll.audit.layout import unpack
    from qll.audit.network import NotConfirmed

    try:
        data = path.read_bytes()
        # A hash is a plain name: a certificate cannot point outside its folder.
        header, _ = unpack(data)
        stored, against = (
            bytes_ if bytes_ is not None or sha is None else (folder / f"{sha}.onnx").read_bytes()
            for bytes_, sha in zip(given, (header.network, header.against), strict=True)
        )
    except (NotConfirmed, OSError) as error:
        return Answer("unknown", False, str(error)), None
    answer = audit(data, stored or b"", expected, against=against)
    if expected is None or answer.claim is None or not answer.confirmed:
        return answer, None
    return answer, expected.compare(answer.claim)


def register(app: typer.Typer) -> None:
    app.command()(audit)
