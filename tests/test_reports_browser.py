"""The pages in a real browser: they draw, filter and react, and ask the network nothing."""

from __future__ import annotations

import csv
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import assert_no_sideways_scroll, browse, opened, wait_until
from synthetic_runs import write_grid

from qll.reports.lab_page import examples, static_page
from qll.reports.lab_server import LabServer
from qll.reports.page import write_report
from qll.reports.paper import Paper, Published
from qll.reports.records import read_runs


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with browse() as found:
        yield found


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two experiments of synthetic records, two seeds."""
    folder = tmp_path_factory.mktemp("report")
    write_grid(folder / "runs", seeds=2, epochs=10, pairs=2)
    published = {("not-both", "dice", "qll", 5.0): {"PAcc": Published(84.0, 0.5)}}
    write_report(
        read_runs([folder / "runs"]), folder, paper=Paper(published), title="synthetic records"
    )
    return folder


def _wait_for_plots(page: Any, section: str, count: int) -> None:
    page.locator(f"#{section}").scroll_into_view_if_needed()
    page.evaluate(f"document.getElementById('{section}').scrollIntoView()")
    wait_until(
        page,
        f"document.querySelectorAll('#{section} .plot').length === {count} &&"
        f" document.querySelectorAll('#{section} .plot[data-drawn=yes] .main-svg').length > 0",
    )


def _pill(page: Any, kind: str, value: str) -> Any:
    return page.locator(f'fieldset[data-filter="{kind}"] input[value="{value}"]')


def _rows(page: Any) -> list[str]:
    """Names of the shown rows, without the marks of their footnotes."""
    shown = "document.querySelectorAll('#table-short tbody tr:not([hidden]) th')"
    return list(page.evaluate(f"[...{shown}].map((th) => th.firstChild.textContent.trim())"))


def test_report_loads_and_draws(browser: Any, report: Path) -> None:
    with opened(browser, (report / "index.html").as_uri()) as watched:
        page = watched.page
        page.wait_for_selector("html[data-ready=yes]")
        for section, count in (("accuracy", 2), ("optimism", 2), ("curves", 4), ("times", 1)):
            _wait_for_plots(page, section, count)
        traces = page.evaluate("document.querySelector('#accuracy .plot').data.length")
        assert traces > 10
        assert page.locator(".gallery figure").count() > 10
        assert page.locator(".gallery img").first.evaluate("i => i.naturalWidth") == 28
        assert_no_sideways_scroll(page)


def test_report_filters(browser: Any, report: Path) -> None:
    with opened(browser, (report / "index.html").as_uri()) as watched:
        page = watched.page
        page.wait_for_selector("html[data-ready=yes]")
        before = _rows(page)
        assert "QLL 5" in before and "Product" in before
        _pill(page, "property", "Clothing/Footwear").uncheck(force=True)
        assert len(_rows(page)) < len(before)
        _wait_for_plots(page, "accuracy", 1)
        _pill(page, "logic", "Product").uncheck(force=True)
        assert "Product" not in _rows(page)
        assert page.locator(".gallery figure:not([hidden])").filter(has_text="Product").count() == 0
        page.get_by_role("button", name="Show everything").click()
        shown = "document.querySelectorAll('#table-short tbody tr:not([hidden])').length"
        wait_until(page, f"{shown} === {len(before)}")
        assert _rows(page) == before


def test_report_figures_follow_the_seeds(browser: Any, report: Path) -> None:
    """With all seeds the page's own arithmetic must give Python's; with one, that seed alone."""
    lines = list(csv.DictReader((report / "table.csv").open()))
    with opened(browser, (report / "index.html").as_uri()) as watched:
        page = watched.page
        page.wait_for_selector("html[data-ready=yes]")
        page.get_by_role("tab", name="Long").click()
        means = page.evaluate("DATA.rows.map((row) => stat(row, 'PAcc'))")
        for line, found in zip(lines, means, strict=True):
            assert found["mean"] == pytest.approx(float(line["PAcc_mean"]), abs=1e-3)
            assert found["deviation"] == pytest.approx(float(line["PAcc_std"]), abs=1e-3)
        _pill(page, "seed", "1").uncheck(force=True)
        cell = page.locator('#table-long tbody tr:not([hidden]) td[data-metric="PAcc"] .ours')
        assert "±" not in cell.first.inner_text()
        marks = page.locator('#table-long td[data-metric="PAcc"] .mark').all_inner_texts()
        assert len(marks) == 1


def test_report_by_keyboard(browser: Any, report: Path) -> None:
    with opened(browser, (report / "index.html").as_uri()) as watched:
        page = watched.page
        page.wait_for_selector("html[data-ready=yes]")
        page.locator("#tab-short").focus()
        page.keyboard.press("ArrowRight")
        assert page.locator("#table-long").is_visible() and page.locator("#table-short").is_hidden()
        pill = _pill(page, "logic", "DL2")
        pill.focus()
        page.keyboard.press("Space")
        assert not pill.is_checked()
        page.locator("#tab-short").click()
        assert "DL2" not in _rows(page)


def test_report_on_a_phone(browser: Any, report: Path) -> None:
    uri = (report / "index.html").as_uri()
    with opened(browser, uri, width=390, height=844) as watched:
        watched.page.wait_for_selector("html[data-ready=yes]")
        _wait_for_plots(watched.page, "accuracy", 2)
        assert_no_sideways_scroll(watched.page)


# --- the lab ---


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
    page.locator("#text").fill("outputs 2\ny[0] <= 0 and y[1] >= 1")
    _drawn(page, count)
    assert page.locator("#error").is_hidden() and page.locator("#backdrop mark").count() == 0
    page.close()


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
