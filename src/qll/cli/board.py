"""What is shown while regions are verified."""

from __future__ import annotations

import time
from typing import Any


class Board:
    """Counts, rate and time left: a live line in a terminal, a plain one now and then elsewhere."""

    _EVERY = 15.0  # seconds between plain lines

    def __init__(self, total: int, known: dict[int, dict[str, Any]]) -> None:
        from rich.console import Console

        self.total = total
        self.tally = {"verified": 0, "falsified": 0, "unknown": 0}
        for row in known.values():
            self.tally[row["status"]] += 1
        self.resumed = len(known)
        self.began = self.said = time.monotonic()
        self.console = Console(stderr=True)
        self.live: Any = None

    def __enter__(self) -> Board:
        if self.resumed:
            self.console.print(f"resuming: {self.resumed} of {self.total} were decided before")
        if self.console.is_terminal:
            from rich.live import Live

            # Once a second: a single hard question moves nothing else for a while.
            self.live = Live(
                get_renderable=self._table,
                console=self.console,
                transient=True,
                refresh_per_second=1,
            )
            self.live.start()
        return self

    def _left(self) -> tuple[float, float | None]:
        """Verdicts a second, and the seconds that the others will take, once that can be said."""
        from qll.training.progress import time_left

        done = sum(self.tally.values()) - self.resumed
        seconds = time.monotonic() - self.began
        rate = done / seconds if seconds > 0 else 0.0
        return rate, time_left(done, self.total - self.resumed, seconds)

    def tell(self, text: str) -> None:
        self.console.print(text, highlight=False, markup=False)

    def _table(self) -> Any:
        from rich.table import Table

        rate, left = self._left()
        table = Table(show_edge=False, pad_edge=False)
        names = ("verified", "falsified", "unknown", "left", "a second", "seconds", "time left")
        for column in names:
            table.add_column(column, justify="right")
        table.add_row(
            f"[green]{self.tally['verified']}",
            f"[red]{self.tally['falsified']}",
            f"[yellow]{self.tally['unknown']}",
            str(self.total - sum(self.tally.values())),
            f"{rate:.1f}",
            f"{time.monotonic() - self.began:.0f}",
            "-" if left is None else f"{left:.0f} s",
        )
        return table

    def add(self, status: str) -> None:
        self.tally[status] += 1
        open_ = self.total - sum(self.tally.values())
        if self.live is None and open_ and time.monotonic() - self.said > self._EVERY:
            self.said = time.monotonic()
            counts = ", ".join(f"{v} {k}" for k, v in self.tally.items())
            left = self._left()[1]
            rest = "" if left is None else f"; about {left:.0f} s left"
            self.console.print(f"{counts} of {self.total}{rest}")

    def __exit__(self, *_: object) -> None:
        if self.live is not None:
            self.live.stop()
