"""Finished runs into compact records, and a run that was made again against its record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qll.errors import RunError
from qll.grid.experiment import difference
from qll.metrics import Share
from qll.reports.compact import SUFFIX, folder_pieces, write_compact
from qll.reports.records import Run, read_run, run_paths

_SHOWN = 3  # differing verdicts that are named


@dataclass(frozen=True)
class Recorded:
    """What became of one run: ``state`` is new, same, differs, replaced or unfinished."""

    name: str
    state: str
    differences: tuple[str, ...] = ()


def record_runs(folders: Sequence[Path], out: Path, *, replace: bool) -> Iterator[Recorded]:
    """Every finished run in or below ``folders``, one file each in ``out``. A record that is there
    is compared, and kept unless ``replace``."""
    for path in run_paths(folders):
        if path.name.endswith(SUFFIX):
            continue
        run = read_run(path)
        if run.state != "finished":
            yield Recorded(run.name, "unfinished")
            continue
        target = out / f"{run.name}{SUFFIX}"
        if not target.exists():
            out.mkdir(parents=True, exist_ok=True)
            write_compact(folder_pieces(path), target)
            yield Recorded(run.name, "new")
            continue
        found = tuple(differences(read_run(target), run))
        if found and replace:
            write_compact(folder_pieces(path), target)
        yield Recorded(
            run.name, "same" if not found else "replaced" if replace else "differs", found
        )


def differences(held: Run, made: Run) -> Iterator[str]:
    """What is counted, in a run that was made again: metrics and verdicts. Losses and times are not
    compared: they depend on the machine."""
    other = difference(held.config, made.config)
    if other is not None:
        name, ours, theirs = other
        raise RunError(
            "a record of this name is of another experiment",
            where=str(held.path),
            expected=f"{name} = {ours!r}",
            found=f"{theirs!r} in {made.path}",
            fix="record the run into another folder, or rename its folder",
        )
    for metric, before in held.shares.items():
        after = made.shares[metric]
        if before != after:
            yield f"{metric}: {_shown(before)} recorded, {_shown(after)} now"
    answers = {v.epsilon: v.answers for v in made.verifications}
    for verification in held.verifications:
        now = {a.index: a.status for a in answers.get(verification.epsilon, ())}
        changed = [
            f"region {a.index} {a.status}, now {now[a.index]}"
            for a in verification.answers
            if a.index in now and now[a.index] != a.status
        ]
        if changed:
            more = f" and {len(changed) - _SHOWN} more" if len(changed) > _SHOWN else ""
            size = verification.epsilon
            where = "" if size is None else f"at epsilon {size:g}: "
            yield f"{where}{'; '.join(changed[:_SHOWN])}{more}"


def _shown(share: Share | None) -> str:
    return "nothing" if share is None else f"{share.good} of {share.total}"
