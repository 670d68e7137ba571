"""Verdicts on disk as they come, so that a killed verification goes on where it stopped."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

from qll.errors import RunError
from qll.files import exclusive, parse_json, read_lines, write_atomically, write_json
from qll.verify.api import Problem
from qll.verify.given import content_hash
from qll.verify.verdict import Status, Verdict


class Journal:
    """Verdicts on disk as they come. A line for each, after a header that says what was asked; a
    second run of the same question goes on where the first one stopped."""

    def __init__(self, out: Path | None, problem: Problem) -> None:
        self.out = out
        self.known: dict[int, dict[str, Any]] = {}
        self.content: dict[str, Any] = {}  # once it is finished
        self._file: Any = None
        self._began = time.monotonic()
        self._question = question(problem)
        # A witness is told from the point that it moved from.
        self._points = None if problem.prop.is_closed else problem.points
        self._shape = list(problem.points.shape[1:])
        self._path = None if out is None else partial_path(out)
        self._held = ExitStack()

    def __enter__(self) -> Journal:
        if self._path is None:
            return self
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            # Two writers would answer everything twice, and mix their lines.
            self._held.enter_context(exclusive(self._path.with_name(f".{self._path.name}.lock")))
            self._read(self._path)
            fresh = not self.known
            self._file = self._path.open("w" if fresh else "a", encoding="utf-8")
            if fresh:
                self._line(self._question)
        except OSError as error:
            raise self._refused(error) from error
        return self

    def _read(self, path: Path) -> None:
        """Verdicts of the same question, up to the line that a kill cut short."""
        rows = read_lines(path, to_damage=True)
        if not rows or rows[0] != self._question:
            return
        for row in rows[1:]:
            if not self._is_verdict(row):
                break
            self.known[row["point"]] = row
        # what follows a torn line is asked again
        kept = [self._question, *self.known.values()]
        write_atomically(path, "".join(json.dumps(row) + "\n" for row in kept).encode())

    def _is_verdict(self, row: dict[str, Any]) -> bool:
        point, status = row.get("point"), row.get("status")
        known = type(point) is int and 0 <= point < self._question["count"]
        return known and status in list(Status) and (status != "unknown" or "reason" in row)

    def finished(self) -> dict[int, dict[str, Any]]:
        """The verdicts of a question that was answered to the end before."""
        if self.out is None or not self.out.is_file():
            return {}
        try:
            content = parse_json(self.out.read_bytes())
            same = all(content.get(key) == value for key, value in self._question.items())
            rows = {int(row["point"]): row for row in content["verdicts"]}
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise RunError(
                "the verdicts cannot be read",
                where=str(self.out),
                expected="a file that 'qll verify --json' wrote",
                found=str(error) or type(error).__name__,
                fix="remove the file: its regions are asked again",
            ) from error
        if not same:
            raise RunError(
                "the verdicts are of another question",
                where=str(self.out),
                expected="the same property, network and data points",
                found="others",
                fix="remove the file, or choose another folder",
            )
        return rows

    def _line(self, row: dict[str, Any]) -> None:
        if self._file is not None:
            try:
                self._write(json.dumps(row) + "\n")
            except OSError as error:
                raise self._refused(error) from error

    def _write(self, text: str) -> None:
        self._file.write(text)
        self._file.flush()

    def _refused(self, error: OSError) -> RunError:
        return RunError(
            "the verdicts cannot be written",
            where=str(self._path),
            expected="a folder with space that can be written",
            found=str(error.strerror or error),
            fix="make room and go on with the same command, or choose another folder",
        )

    def add(self, index: int, verdict: Verdict) -> None:
        row = {"point": index, **verdict.as_json()}
        if verdict.witness is not None:
            row["witness"] = [float(v) for v in verdict.witness.reshape(-1)]
            if self._points is not None:
                row["x0"] = [float(v) for v in self._points[index].reshape(-1)]
        if verdict.witness2 is not None:
            row["witness2"] = [float(v) for v in verdict.witness2.reshape(-1)]
        self.known[index] = row
        self._line(row)

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()
        self._held.close()

    def finish(self, tally: dict[str, int]) -> None:
        self.content = {
            **self._question,
            "input_shape": self._shape,
            "total": {**tally, "wall_seconds": round(time.monotonic() - self._began, 3)},
            "verdicts": [self.known[i] for i in sorted(self.known)],
        }
        if self.out is not None and self._path is not None:
            write_json(self.out, self.content)
            self._path.unlink(missing_ok=True)


def partial_path(out: Path) -> Path:
    """Where verdicts are kept until all are there."""
    return out.with_name(out.name + ".partial")


def question(problem: Problem) -> dict[str, Any]:
    """What was asked: verdicts answer this and nothing else."""
    points = hashlib.sha256(problem.points.tobytes()).hexdigest()
    labels = json.dumps(problem.labels)
    return {
        "property": problem.name,
        "text": problem.text,
        "parameters": problem.parameters,
        "network_sha256": problem.handle.sha256,
        "points_sha256": points,
        "labels_sha256": hashlib.sha256(labels.encode()).hexdigest(),
        # the numbers themselves: a printed array leaves out digits and entries
        "mean": None if problem.mean is None else content_hash(problem.mean),
        "std": None if problem.std is None else content_hash(problem.std),
        "timeout": problem.timeout,
        "backend": problem.backend,
        "certified": problem.certified,
        "arithmetic": problem.arithmetic,
        "count": len(problem),
        **({} if problem.fast else {"checked": True}),
        **(
            {}
            if problem.against is None
            else {"against": hashlib.sha256(problem.against).hexdigest()}
        ),
    }
