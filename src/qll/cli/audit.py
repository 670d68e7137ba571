"""``qll audit``: check the certificates of a folder without believing who wrote them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

EXIT_NOT_CONFIRMED = 12
SUFFIX = ".qllcert"
CLAIM = (
    "Claim: in real arithmetic on the stored weights, every point of the region satisfies the\n"
    "property (verified), or the witness lies in the region and strictly violates it (falsified)."
)


def audit(
    folder: Annotated[Path, typer.Argument(metavar="DIR", help="Of qll verify --certificate.")],
    network: Annotated[
        Path | None, typer.Option(help="The ONNX file that the verdicts must be about.")
    ] = None,
    out: Annotated[Path | None, typer.Option("--json", help="Write the answers here.")] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="Show only what fails.")] = False,
) -> None:
    """Check every certificate of a folder. Exit code 0: all confirmed, 12: some not, 2: wrong use.

    Example: qll audit certificates --network net.onnx
    """
    from qll.audit import Answer, audit
    from qll.audit.claim import unpack
    from qll.audit.network import NotConfirmed
    from qll.errors import InputError
    from qll.files import write_json

    paths = sorted(folder.glob(f"*{SUFFIX}")) if folder.is_dir() else []
    if not paths:
        raise InputError(
            f"there is no certificate in {folder}",
            expected=f"a folder with files *{SUFFIX}",
            found="none" if folder.is_dir() else "no such folder",
            fix="write some with qll verify --certificate DIR",
        )
    try:
        given = None if network is None else network.read_bytes()
    except OSError as error:
        raise InputError(
            f"the network {network} cannot be read",
            expected="an ONNX file",
            found=str(error.strerror or error),
            fix="check the path given to --network",
        ) from error
    typer.echo(CLAIM)
    rows, said = [], set[str]()
    for path in paths:
        subject = ""
        try:
            data = path.read_bytes()
            subject = _subject(unpack(data)[0])
            stored = given
            if stored is None:
                name = str(unpack(data)[0]["network"])
                # A hash is a plain name: a certificate cannot point outside its folder.
                if len(name) != 64 or not name.isalnum():
                    raise NotConfirmed("its network has no hash")
                stored = (folder / f"{name}.onnx").read_bytes()
            answer = audit(data, stored)
        except (NotConfirmed, OSError, LookupError, TypeError, AttributeError) as error:
            answer = Answer("unknown", False, str(error))
        rows.append({"certificate": path.name, "claim": subject, **answer._asdict()})
        if subject and subject not in said:
            said.add(subject)
            typer.echo(f"\n{_plain(subject)}")
        if not (quiet and answer.confirmed):
            word = "confirmed" if answer.confirmed else "NOT CONFIRMED"
            line = f"{path.name}: {answer.verdict[:80]}: {word}: {answer.reason[:400]}"
            typer.echo(_plain(line).replace("\n", " "))
    confirmed = [row for row in rows if row["confirmed"]]
    for verdict in ("verified", "falsified", "unknown"):
        count = sum(row["verdict"] == verdict for row in rows)
        if count:
            good = sum(row["verdict"] == verdict for row in confirmed)
            typer.echo(f"{verdict}: {good} of {count} confirmed")
    if out is not None:
        write_json(out, {"certificates": rows})
    if len(confirmed) < len(rows):
        raise typer.Exit(EXIT_NOT_CONFIRMED)


def _subject(header: dict[str, Any]) -> str:
    """What a certificate is about, besides its data point: shown, because a proof of the wrong
    thing is a proof as well."""
    given = ", ".join(f"{name} = {value}" for name, value in header["parameters"].items())
    scale = "none" if header["mean"] is None else f"mean {header['mean']}, std {header['std']}"
    network = f"Network {str(header['network'])[:64]}, normalisation: {scale[:200]}"
    text = "\n".join(f"  {line}" for line in str(header["text"])[:2000].strip().splitlines())
    return f"{text}\nwith {given or 'no parameters'}. {network}"


def _plain(text: str) -> str:
    """Without control characters: a certificate must not rewrite what the screen says."""
    return "".join(c if c.isprintable() or c == "\n" else "?" for c in text)


def register(app: typer.Typer) -> None:
    app.command()(audit)
