"""The lab in a real browser: it answers as one types, and says where an error is."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import assert_no_sideways_scroll, browse, opened, wait_until

from qll.reports.lab_page import examples, static_page
from qll.reports.lab_server import LabServer


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browse() as found:
        yield found


@pytest.fixture(scope="module")
def lab() -> Iterator[str]:
    with LabServer(0) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        yield server.address
        server.shutdown()
        thread.join(10)


def _drawn(page: Any, more_than: int) -> int:
    """Wait for another picture; how many there were."""
    wait_until(page, f"Number(document.documentElement.dataset.drawn || 0) > {more_than}")
    return int(page.evaluate("document.documentElement.dataset.drawn"))


def _picture(page: Any, logic: str) -> str:
    return str(page.evaluate(f"document.querySelector('[data-logic={logic}] canvas').toDataURL()"))


def _losses(page: Any, logic: str) -> list[float]:
    return list(page.evaluate(f"state.reply.logics.find((p) => p.logic === '{logic}').loss"))


def test_lab_reacts(browser: Any, lab: str) -> None:
    with opened(browser, lab) as watched:
        page = watched.page
        count = _drawn(page, 0)
        assert page.locator("#panels article").count() == 8
        qll, dl2 = _picture(page, "qll"), _losses(page, "dl2")
        page.locator("#hardness").fill("40")  # 10
        count = _drawn(page, count)
        assert _picture(page, "qll") != qll and _losses(page, "dl2") == dl2
        assert "QLL 10" in page.locator("[data-logic=qll] .name").inner_text()
        page.locator("#text").fill("outputs 2\ny[0] + y[1] <= 1 or y[0] >= 2")
        count = _drawn(page, count)
        assert _losses(page, "dl2") != dl2
        page.locator("#epsilon").fill("1.5")
        count = _drawn(page, count)
        page.locator("[data-logic=qll] canvas").focus()
        page.keyboard.press("ArrowRight")
        _drawn(page, count)
        assert "y[0] = 0.10" in page.locator("#status").inner_text()
        assert_no_sideways_scroll(page)


def test_lab_shows_errors_at_their_place(browser: Any, lab: str) -> None:
    """The server's refusal of a formula (422) is the one thing that the console may tell."""
    page = browser.new_page()
    page.set_default_timeout(60_000)
    page.goto(lab)
    count = _drawn(page, 0)
    page.locator("#text").fill("outputs 2\ny[0] <= 0 and y[7] >= 1")
    page.wait_for_selector("#error:not([hidden])")
    assert "Line 2, column 17" in page.locator("#error").inner_text()
    assert page.locator("#backdrop mark").inner_text() == "7"
    assert page.locator("#text").get_attribute("aria-invalid") == "true"
    opacity = "Number(getComputedStyle(document.getElementById('panels')).opacity)"
    wait_until(page, f"{opacity} < 0.5")
    assert "violated" not in page.locator("#status").inner_text()
    assert "last formula that could be read" in page.locator("#status").inner_text()
    page.locator("#text").fill("outputs 2\ny[0] <= 0 and y[1] >= 1")
    _drawn(page, count)
    assert page.locator("#error").is_hidden() and page.locator("#backdrop mark").count() == 0
    wait_until(page, f"{opacity} === 1")
    page.close()


def test_lab_keeps_a_choice_made_while_it_answers(browser: Any, lab: str) -> None:
    with opened(browser, lab) as watched:
        page = watched.page
        count = _drawn(page, 0)
        page.locator("#text").fill("outputs 3\ny[0] <= 0 or y[1] + y[2] >= 1")
        count = _drawn(page, count)
        page.evaluate(
            """() => {
              const ask = window.fetch;
              window.fetch = async (...asked) => {
                const answer = await ask(...asked);
                document.documentElement.dataset.held = "yes";
                await new Promise((done) => setTimeout(done, 1500));
                return answer;
              };
            }"""
        )
        page.locator("#epsilon").fill("1.5")
        wait_until(page, "document.documentElement.dataset.held === 'yes'")
        page.locator("#axis-y").select_option("2")
        assert _drawn(page, count) == count + 1  # the answer to the older question
        assert page.evaluate("state.reply.axes") == [0, 1]
        assert page.locator("#axis-y").input_value() == "2"
        _drawn(page, count + 1)
        assert page.evaluate("state.reply.axes") == [0, 2]
        assert page.locator("#axis-y").input_value() == "2"


def test_static_lab(
    browser: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lab: str
) -> None:
    few = examples()[:3]
    monkeypatch.setattr("qll.reports.lab_page.examples", lambda: few)
    path = tmp_path / "lab.html"
    path.write_text(static_page())
    with opened(browser, path.as_uri(), width=390, height=844) as watched:
        page = watched.page
        count = _drawn(page, 0)
        qll = _picture(page, "qll")
        page.locator("#hardness").fill("4")
        count = _drawn(page, count)
        assert _picture(page, "qll") != qll
        page.locator("#example").select_option("1")
        count = _drawn(page, count)
        assert " or " in page.locator("#text").input_value()
        page.locator("[data-logic=qll] canvas").focus()
        page.keyboard.press("ArrowUp")
        _drawn(page, count)
        assert "y[1] = 0.10" in page.locator("#status").inner_text()
        assert page.locator("#text").get_attribute("readonly") is not None
        assert_no_sideways_scroll(page)
