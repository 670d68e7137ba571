"""A real browser for the tests of pages: Debian's Chromium, headless and without a network."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest

_ARGUMENTS = [
    "--no-sandbox",
    "--disable-gpu",
    "--disable-dev-shm-usage",
    "--disable-background-networking",
    "--disable-component-update",
    "--no-first-run",
]


def find_chromium() -> str:
    """Its path. Without one a test is skipped."""
    for name in ("chromium", "chromium-browser", "google-chrome"):
        if path := shutil.which(name):
            return path
    pytest.skip("no chromium on PATH: install it ('apt-get install chromium') to test the pages")


class Watched:
    """A page, and everything that it should not do."""

    def __init__(self, page: Any, allowed: str) -> None:
        self.page = page
        self.problems: list[str] = []
        page.on("console", self._console)
        page.on("pageerror", lambda error: self.problems.append(f"error: {error}"))
        page.on("request", lambda request: self._request(request.url, allowed))

    def _console(self, message: Any) -> None:
        if message.type in ("error", "warning"):
            self.problems.append(f"console: {message.text}")

    def _request(self, url: str, allowed: str) -> None:
        if not url.startswith((allowed, "data:", "blob:")):
            self.problems.append(f"request: {url}")


@contextmanager
def browse() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    path = find_chromium()
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=_ARGUMENTS)
        yield browser
        browser.close()


@contextmanager
def opened(browser: Any, url: str, *, width: int = 1400, height: int = 1000) -> Iterator[Watched]:
    """The page at ``url``; leaving the block fails if it did what a page should not do."""
    page = browser.new_page(viewport={"width": width, "height": height})
    page.set_default_timeout(60_000)
    watched = Watched(page, url)
    page.goto(url)
    yield watched
    page.close()
    assert watched.problems == []


def wait_until(page: Any, expression: str, *, seconds: float = 60.0) -> None:
    """Until a JavaScript expression is true. Asked from outside: the pages' own policy forbids the
    evaluation of texts that playwright's waiting needs."""
    end = time.monotonic() + seconds
    while not page.evaluate(expression):
        assert time.monotonic() < end, f"never became true: {expression}"
        page.wait_for_timeout(50)


def assert_no_sideways_scroll(page: Any) -> None:
    wide, window = page.evaluate("[document.documentElement.scrollWidth, window.innerWidth]")
    assert wide <= window
