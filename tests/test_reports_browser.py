"""The pages in a real browser: they draw, filter and react, and ask the network nothing."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import assert_no_sideways_scroll, browse, opened, wait_until
from synthetic_runs import write_grid, write_run

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
    shown = "document.querySelectorAll('#table-short tr[data-row]:not([hidden]) th')"
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
        shown = "document.querySelectorAll('#table-short tr[data-row]:not([hidden])').length"
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
        cell = page.locator('#table-long tr[data-row]:not([hidden]) td[data-metric="PAcc"] .ours')
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
    """Figures are in sight, the logic's name stays there, plots have legends and whole titles."""
    uri = (report / "index.html").as_uri()
    with opened(browser, uri, width=390, height=844) as watched:
        page = watched.page
        page.wait_for_selector("html[data-ready=yes]")
        row = page.locator("#table-short tr[data-row]").first
        figure = row.locator(".ours").first.bounding_box()
        assert figure["x"] >= 0 and figure["x"] + figure["width"] <= 390
        before = row.locator("th").bounding_box()["x"]
        page.evaluate("document.getElementById('table-short').scrollLeft = 100")
        assert row.locator(".ours").first.bounding_box()["x"] < figure["x"]
        assert row.locator("th").bounding_box()["x"] == pytest.approx(before, abs=2)
        for section, count in (("accuracy", 2), ("optimism", 2), ("curves", 4), ("times", 1)):
            _wait_for_plots(page, section, count)
            entries = page.locator(f"#{section} .legend li")
            assert entries.filter(has_text="QLL 5").is_visible()
            assert entries.filter(has_text="QLL 5").locator("svg").is_visible()
            for title in page.locator(f"#{section} .panel h3:not([hidden])").all():
                assert title.evaluate("h => h.scrollWidth <= h.clientWidth")
        assert_no_sideways_scroll(page)


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Full runs, of which STL is the best, and a short run of QLL 5 that would beat them all."""
    folder = tmp_path_factory.mktemp("mixed")
    for logic, epochs, verified in (
        ("dl2", 100, 0.2),
        ("stl:5", 100, 0.6),
        ("qll:5", 100, 0.4),
        ("qll:5", 10, 0.95),
    ):
        name = f"{logic.replace(':', '')}-{epochs}"
        write_run(
            folder / "runs" / name, "not-both", "dice", logic, 0, epochs=epochs, verified=verified
        )
    write_report(read_runs([folder / "runs"]), folder, title="synthetic records")
    return folder


def test_only_rows_that_can_be_compared_compete(browser: Any, mixed: Path) -> None:
    with opened(browser, (mixed / "index.html").as_uri()) as watched:
        page = watched.page
        page.wait_for_selector("html[data-ready=yes]")
        assert page.locator("#table-short tr.title").all_inner_texts() == [
            "Not-Both, Dice ε = 4/255, 100 epochs",
            "Not-Both, Dice ε = 4/255, 10 epochs",
        ]
        assert page.locator("#table-short tr.best th").all_inner_texts() == ["STL 5"]
        _wait_for_plots(page, "accuracy", 2)
        assert page.locator("#accuracy h3").all_inner_texts() == [
            "Not-Both, Dice, 100 epochs",
            "Not-Both, Dice, 10 epochs",
        ]
        front = page.evaluate("document.querySelector('#accuracy .plot').data[0].y")
        short = page.evaluate("stat(DATA.rows.find((row) => row.short), 'CSat').mean")
        assert front and max(front) < short
        _pill(page, "logic", "STL 5").uncheck(force=True)
        assert page.locator("#table-short tr.best th").all_inner_texts() == ["QLL 5"]
        assert "short" not in page.locator("#table-short tr.best").inner_text()


def test_rows_of_one_name_are_told_apart(browser: Any, mixed: Path) -> None:
    with opened(browser, (mixed / "index.html").as_uri()) as watched:
        page = watched.page
        page.wait_for_selector("html[data-ready=yes]")
        names = page.evaluate("[...labelsOf(DATA.rows).values()]")
        assert set(names) == {
            "DL2",
            "STL 5",
            "QLL 5, 100 epochs",
            "QLL 5, 10 epochs",
        }
        _wait_for_plots(page, "times", 1)
        page.locator("#times-group").select_option("all")
        drawn = "document.querySelector('#times .plot').data.map((trace) => trace.name)"
        wait_until(page, f"{drawn}.length === 4")
        assert len(set(page.evaluate(drawn))) == 4
        assert "QLL 5, Not-Both, Dice, 10 epochs (short run)" in page.evaluate(drawn)
        _pill(page, "epochs", "10").uncheck(force=True)
        assert _rows(page).count("QLL 5") == 1


def test_figures_of_plots_by_keyboard(browser: Any, report: Path) -> None:
    """What the plots show can be read as a table, which follows the filters."""
    lines = list(csv.DictReader((report / "table.csv").open()))
    with opened(browser, (report / "index.html").as_uri()) as watched:
        page = watched.page
        page.wait_for_selector("html[data-ready=yes]")
        for section in ("accuracy", "optimism", "curves", "times"):
            figures = page.locator(f'[data-figures="{section}"]')
            assert figures.locator("table").count() == 0
            figures.locator("summary").focus()
            page.keyboard.press("Enter")
            figures.locator("tr", has_text="DL2").first.wait_for()
        accuracy = page.locator('[data-figures="accuracy"] tbody tr:not(.title)')
        assert accuracy.count() == len(lines)
        for line, text in zip(lines, accuracy.all_inner_texts(), strict=True):
            mean, _, deviation = text.split("\t")[1].partition(" ± ")
            assert float(mean) == pytest.approx(float(line["PAcc_mean"]), abs=0.0501)
            assert float(deviation) == pytest.approx(float(line["PAcc_std"]), abs=0.0501)
        decided = page.locator('[data-figures="times"] tbody tr:not(.title)').first
        counts = [int(text) for text in decided.locator("td").all_inner_texts()[:-1]]
        assert counts == sorted(counts) and counts[-1] > 0
        _pill(page, "logic", "DL2").uncheck(force=True)
        for section in ("accuracy", "optimism", "curves", "times"):
            table = f"document.querySelector('[data-figures={section}]').textContent"
            wait_until(page, f"!{table}.includes('DL2') && {table}.includes('QLL 5')")


def test_everything_filtered_out(browser: Any, report: Path) -> None:
    with opened(browser, (report / "index.html").as_uri()) as watched:
        page = watched.page
        page.wait_for_selector("html[data-ready=yes]")
        count = page.locator("#witness-count")
        assert f"{page.locator('.gallery figure').count()} of " in count.inner_text()
        total = int(count.inner_text().split()[2])
        _pill(page, "property", "Clothing/Footwear").uncheck(force=True)
        shown, _, left = count.inner_text().split()[:3]
        assert int(shown) == page.locator(".gallery figure:not([hidden])").count()
        assert 0 < int(left) < total
        assert page.locator(".nothing").is_hidden()
        _pill(page, "property", "Not-Both").uncheck(force=True)
        assert page.locator(".nothing").is_visible()
        assert count.inner_text() == "0 of 0 are shown"
        wait_until(page, "document.querySelectorAll('.plot').length === 0")
        assert page.locator("#curves-group").is_hidden()
        assert page.locator("#curves .empty").inner_text() == "Every run is filtered out."
        for section in ("comparison", "runs"):
            assert "filters do not touch" in page.locator(f"#{section}").inner_text()


def test_many_filters_at_once(browser: Any, report: Path) -> None:
    """Plots that go while they are drawn: Plotly failed on what it found purged."""
    with opened(browser, (report / "index.html").as_uri()) as watched:
        page = watched.page
        page.wait_for_selector("html[data-ready=yes]")
        page.evaluate(
            """async () => {
              document.getElementById("accuracy").scrollIntoView();
              await new Promise((done) => setTimeout(done, 300));
              for (const box of document.querySelectorAll(".pill input")) {
                for (let k = 0; k < 4; k++) box.click();
                await new Promise((done) => setTimeout(done, 20));
              }
            }"""
        )
        _wait_for_plots(page, "accuracy", 2)


@pytest.fixture(scope="module")
def doubtful(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A short run with vacuous regions (two notes), and one at chance of which all is proved."""
    folder = tmp_path_factory.mktemp("doubtful")
    for logic, pacc, verified in (("dl2", 0.9, 0.6), ("stl:5", 0.585, 1.0), ("qll:5", 0.8, 0.5)):
        write_run(
            folder / "runs" / logic.replace(":", ""), "not-both", "dice", logic, 0, epochs=10,
            pacc=pacc, verified=verified, chance=0.5, vacuous=7,
        )  # fmt: skip
    write_report(read_runs([folder / "runs"]), folder, title="synthetic records")
    return folder


def test_the_page_says_what_was_asked_and_what_is_doubtful(browser: Any, doubtful: Path) -> None:
    with opened(browser, (doubtful / "index.html").as_uri()) as watched:
        page = watched.page
        page.wait_for_selector("html[data-ready=yes]")
        rule = page.locator("#rules pre").inner_text()
        assert "parameter epsilon: input = 0.01568627450980392" in rule and "opposite" in rule
        assert "chance 50.0 %" in page.locator("#table-short tr.title").inner_text()
        low = page.locator("#table-short tr[data-row]", has_text="near chance")
        shown = [row for row in low.all() if row.locator(".low").is_visible()]
        assert len(shown) == 1 and "STL 5" in shown[0].inner_text()
        best = page.locator("#table-short tr.best th")
        assert best.count() == 1 and best.inner_text().startswith("DL2")
        assert best.locator("sup").inner_text() == "1, 2"
        assert page.locator("#note-2").inner_text().startswith("7 of 100 regions hold whatever")
        # of the others alone, each is nearer to itself than to chance
        _pill(page, "logic", "DL2").uncheck(force=True)
        _pill(page, "logic", "QLL 5").uncheck(force=True)
        assert page.locator("#table-short .low:visible").count() == 0


def test_witnesses_mark_what_broke_the_rule(browser: Any, report: Path) -> None:
    with opened(browser, (report / "index.html").as_uri()) as watched:
        page = watched.page
        page.wait_for_selector("html[data-ready=yes]")
        figures = page.locator(".gallery figure", has_text="broken:")
        assert figures.count() > 3
        for figure in figures.filter(has_text="not-both").all():
            marked = figure.locator("tr.broke")
            faces = [int(t.split()[-1]) for t in marked.locator("th").all_inner_texts()]
            assert sum(faces) == 5, "two opposite faces"
            assert all(float(t) >= 0 for t in marked.locator("td:last-child").all_inner_texts())
            assert figure.locator("tbody .true").count() == 3


def test_every_plot_is_printed(browser: Any, report: Path) -> None:
    """Plots that were never scrolled to were empty on paper."""
    with opened(browser, (report / "index.html").as_uri()) as watched:
        page = watched.page
        page.wait_for_selector("html[data-ready=yes]")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        plots = "[...document.querySelectorAll('.plot')]"
        wait_until(page, f"{plots}.length === 9 && {plots}.every((p) => p.dataset.drawn === 'yes')")
        assert page.evaluate(f"{plots}.every((p) => p.querySelector('.main-svg .trace'))")
        page.evaluate("window.dispatchEvent(new Event('beforeprint'))")
        widths = f"{plots}.map((p) => p.querySelector('.main-svg').getAttribute('width'))"
        wait_until(page, f"{widths}.every((w) => Number(w) <= 640)")
        page.evaluate("window.dispatchEvent(new Event('afterprint'))")
        wait_until(page, f"{widths}.some((w) => Number(w) > 640)")


def test_a_table_that_is_cut_says_so(browser: Any, report: Path) -> None:
    uri = (report / "index.html").as_uri()
    with opened(browser, uri, width=390, height=844) as watched:
        page = watched.page
        page.wait_for_selector("html[data-ready=yes]")
        assert page.locator("[data-more]").is_visible()
        assert "cut" in page.locator("#table-short").get_attribute("class")
        page.evaluate("document.getElementById('table-short').scrollLeft = 10000")
        gone = "!document.getElementById('table-short').classList.contains('cut')"
        wait_until(page, gone)
        csat = page.locator('#table-short tr[data-row] td[data-metric="CSat"] .ours').first
        box = csat.bounding_box()
        assert box["x"] + box["width"] <= 390
        assert_no_sideways_scroll(page)
    with opened(browser, uri) as watched:
        watched.page.wait_for_selector("html[data-ready=yes]")
        assert watched.page.locator("[data-more]").is_hidden()


def test_report_contrast(browser: Any, report: Path) -> None:
    """At least 4.5:1 for every text of the page itself (WCAG 2.1, 1.4.3)."""
    with opened(browser, (report / "index.html").as_uri()) as watched:
        page = watched.page
        page.wait_for_selector("html[data-ready=yes]")
        _pill(page, "logic", "DL2").uncheck(force=True)
        page.get_by_role("tab", name="Long").click()
        assert page.evaluate(_LOW_CONTRAST) == []


_LOW_CONTRAST = """() => {
  const parts = (colour) => colour.match(/[\\d.]+/g).map(Number);
  const light = (colour) => {
    const [r, g, b] = parts(colour).map((v) => v / 255)
      .map((v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4));
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = getComputedStyle(e).backgroundColor;
      if ((parts(colour)[3] ?? 1) > 0) return colour;
    }
    return "rgb(255, 255, 255)";
  };
  const found = [];
  for (const e of document.querySelectorAll("header *, aside *, main *:not(svg, svg *)")) {
    const own = [...e.childNodes].some((n) => n.nodeType === Node.TEXT_NODE && n.data.trim());
    if (!own || !e.getClientRects().length || e.closest(".plot")) continue;
    const [a, b] = [light(getComputedStyle(e).color), light(behind(e))];
    const ratio = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
    if (ratio < 4.5) found.push(`${e.tagName} ${e.textContent.trim().slice(0, 30)}: ${ratio}`);
  }
  return found;
}"""
