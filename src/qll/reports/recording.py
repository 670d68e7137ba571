"""Finished runs into compact records, and a run that was made again against its record."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from qll.errors import InputError, QllError
from qll.files import write_atomically
from qll.reports.compact import SUFFIX, compact_pieces, compacted, folder_pieces
from qll.reports.differences import differences, remarks
from qll.reports.records import read_run, run_of, run_paths


@dataclass(frozen=True)
class Recorded:
    """What became of one run: ``state`` is new, same, differs, replaced, unfinished or refused;
    ``differences`` say why. ``remarks`` say what is another in a run that is the same in all that
    is counted."""

    name: str
    state: str
    differences: tuple[str, ...] = ()
    remarks: tuple[str, ...] = ()


def record_runs(folders: Sequence[Path], out: Path, *, replace: bool) -> Iterator[Recorded]:
    """Every finished run in or below ``folders``, one file each in ``out``. A record that is there
    is compared, and kept unless ``replace``. A run that cannot be recorded stops no other."""
    if out.exists() and not out.is_dir():
        raise InputError(
            "the records need a folder",
            where=str(out),
            expected="a folder, or a name that is free",
            found="a file",
            fix="give another --out",
        )
    for path in _folders_of(folders):
        try:
            found = _recorded(path, out, replace=replace)
        except (QllError, OSError, UnicodeError) as error:
            found = Recorded(path.name, "refused", tuple(str(error).splitlines()))
        yield found


def _recorded(path: Path, out: Path, *, replace: bool) -> Recorded:
    pieces = folder_pieces(path)
    run = run_of(path, pieces, recorded=False)
    if run.state != "finished":
        return Recorded(run.name, "unfinished")
    content = compacted(pieces)
    # What cannot be read again is not written.
    run_of(path, compact_pieces(content, path), recorded=True)
    target = out / f"{run.name}{SUFFIX}"
    if not target.exists():
        out.mkdir(parents=True, exist_ok=True)
        write_atomically(target, content)
        return Recorded(run.name, "new")
    held = read_run(target)
    found = tuple(differences(held, run))
    if found and replace:
        write_atomically(target, content)
    state = "same" if not found else "replaced" if replace else "differs"
    return Recorded(run.name, state, found, tuple(remarks(held, run)))


def _folders_of(given: Sequence[Path]) -> list[Path]:
    """Records beside runs are passed over; records alone are a mistake."""
    paths = run_paths(given)
    found = [path for path in paths if not path.name.endswith(SUFFIX)]
    if not found:
        raise InputError(
            "these are records already" if paths else "there is no run to record",
            where=", ".join(map(str, given)),
            expected="folders with config.json, as 'qll train --out' and 'qll reproduce' make them",
            found=f"{len(paths)} files *{SUFFIX}" if paths else "none",
            fix="give the folders of the runs; 'qll report' reads records"
            if paths
            else "give the folder of a run, or the one that holds several",
        )
    return found
