"use strict";
// Filters, tables and the gallery. Legends are in report_legends.js, plots in report_plots.js.

const DATA = JSON.parse(document.getElementById("data").textContent);
const METRIC = Object.fromEntries(DATA.metrics.map((name, k) => [name, k]));
const SYMBOLS = {
  circle: '<circle cx="6" cy="6" r="5"/>',
  square: '<rect x="1.5" y="1.5" width="9" height="9"/>',
  diamond: '<path d="M6 0l6 6-6 6-6-6z"/>',
  "triangle-up": '<path d="M6 1l6 10H0z"/>',
  star: '<path d="M6 0l1.8 4 4.2.4-3.2 2.8 1 4.3L6 9.2 2.2 11.500l1-4.300L0 4.4 4.2 4z"/>',
  cross: '<path d="M4 0h4v4h4v4H8v4H4V8H0V4h4z"/>',
  pentagon: '<path d="M6 0l6 4.5-2.3 7H2.300L0 4.500z"/>',
};

DATA.rows.forEach((row) => { row.runs = []; });
DATA.runs.forEach((run) => { DATA.rows[run.row].runs.push(run); });

const unique = (values) => [...new Set(values)];
const FILTERS = {
  property: unique(DATA.groups.map((group) => group.property)),
  data: unique(DATA.groups.map((group) => group.data)),
  logic: unique(DATA.rows.map((row) => row.name)),
  epochs: unique(DATA.groups.map((group) => group.epochs)).sort((a, b) => b - a).map(String),
  seed: unique(DATA.runs.map((run) => run.seed)).sort((a, b) => a - b).map(String),
};
const chosen = Object.fromEntries(Object.entries(FILTERS).map(([k, v]) => [k, new Set(v)]));

const swatch = (row) => `<svg viewBox="0 0 12 12" aria-hidden="true" fill="${row.colour}">${SYMBOLS[row.symbol]}</svg>`;

function pill(kind, value) {
  const label = document.createElement("label");
  label.className = "pill";
  const box = Object.assign(document.createElement("input"), { type: "checkbox", defaultChecked: true, value });
  box.name = kind;
  label.append(box);
  if (kind === "logic") label.insertAdjacentHTML("beforeend", swatch(DATA.rows.find((row) => row.name === value)));
  label.append(value);
  return label;
}

function buildFilters() {
  for (const [kind, values] of Object.entries(FILTERS)) {
    const set = document.querySelector(`fieldset[data-filter="${kind}"]`);
    values.forEach((value) => set.append(pill(kind, value)));
    set.hidden = values.length < 2;
  }
  const form = document.getElementById("filter-form");
  form.addEventListener("change", () => { readFilters(form); update(); });
  form.addEventListener("reset", () => setTimeout(() => { readFilters(form); update(); }));
  form.addEventListener("submit", (event) => event.preventDefault());
  if (window.matchMedia("(max-width: 900px)").matches) document.getElementById("filters").open = false;
}

function readFilters(form) {
  for (const kind of Object.keys(FILTERS)) {
    chosen[kind] = new Set([...form.querySelectorAll(`input[name="${kind}"]:checked`)].map((box) => box.value));
  }
}

const hasSeed = (run) => chosen.seed.has(String(run.seed));
function isShown(row) {
  const group = DATA.groups[row.group];
  return chosen.property.has(group.property) && chosen.data.has(group.data) && chosen.epochs.has(String(group.epochs)) &&
    chosen.logic.has(row.name) && row.runs.some(hasSeed);
}

// Mean and sample deviation of the chosen seeds; the page's own figures are those of all seeds.
// "published": counted as the paper does, with what holds vacuously.
function stat(row, metric, counted = "figures") {
  const values = row.runs.filter(hasSeed).map((run) => run[counted][METRIC[metric]]).filter((v) => v !== null);
  if (!values.length) return null;
  const mean = values.reduce((a, b) => a + b, 0) / values.length;
  const squares = values.reduce((a, b) => a + (b - mean) ** 2, 0);
  return { mean, deviation: values.length > 1 ? Math.sqrt(squares / (values.length - 1)) : null };
}

const written = (s) => (s === null ? "n/a" : s.mean.toFixed(1) + (s.deviation === null ? "" : ` ± ${s.deviation.toFixed(1)}`));

function updateTables() {
  for (const table of document.querySelectorAll("table.results")) {
    for (const line of table.querySelectorAll("tr[data-row]")) {
      const row = DATA.rows[line.dataset.row];
      line.hidden = !isShown(row);
      line.classList.remove("best");
      if (line.hidden) continue;
      line.querySelector(".seeds").textContent = row.runs.filter(hasSeed).length;
      for (const cell of line.querySelectorAll("td[data-metric]")) updateCell(cell, row);
    }
    for (const body of table.tBodies) {
      const lines = [...body.querySelectorAll("tr[data-row]:not([hidden])")];
      body.hidden = !lines.length;
      markBest(lines);
    }
  }
}

function updateCell(cell, row) {
  const found = stat(row, cell.dataset.metric);
  cell.querySelector(".ours").textContent = written(found);
  const mark = cell.querySelector(".mark");
  const published = row.paper[METRIC[cell.dataset.metric]];
  if (!mark || !published) return;
  const same = stat(row, cell.dataset.metric, "published");
  const gap = same === null ? 0 : same.mean - published[0];
  const outside = Math.abs(gap) > Math.max(published[1], 0.05) + 1e-9;
  mark.textContent = outside ? (gap > 0 ? "▲" : "▼") : "";
  mark.className = `mark ${gap > 0 ? "above" : "below"}`;
}

// Rows nearer to chance than to the most accurate one of their group: what is proved of them says little.
function isNearChance(row, lines) {
  const accuracies = lines.map((line) => stat(DATA.rows[line.dataset.row], "PAcc")).filter(Boolean).map((s) => s.mean);
  const own = stat(row, "PAcc");
  if (row.chance === null || !own) return false;
  return own.mean <= row.chance || own.mean - row.chance < (Math.max(...accuracies) - row.chance) / 2;
}

// Of the lines of one group, and only of them: a row without others to be better than is not the best.
function markBest(lines) {
  const scores = lines.map((line) => {
    const row = DATA.rows[line.dataset.row];
    const [accuracy, proved] = [stat(row, "PAcc"), stat(row, "CSat")];
    const low = isNearChance(row, lines);
    line.querySelector(".low").hidden = !low;
    return { line, score: accuracy && proved && !low ? Math.round(accuracy.mean * proved.mean / 10) / 10 : -1 };
  });
  const top = Math.max(...scores.map((s) => s.score));
  if (lines.length > 1 && top > 0) scores.filter((s) => s.score === top).forEach((s) => s.line.classList.add("best"));
}

function updateGallery(rows) {
  const figures = [...document.querySelectorAll(".gallery figure")];
  for (const figure of figures) {
    figure.hidden = !isShown(DATA.rows[figure.dataset.row]) || !chosen.seed.has(figure.dataset.seed);
  }
  if (!figures.length) return;
  const recorded = rows.flatMap((row) => row.runs).filter(hasSeed).reduce((n, run) => n + run.witnesses, 0);
  const shown = figures.filter((figure) => !figure.hidden).length;
  document.getElementById("witness-count").textContent = `${shown} of ${recorded.toLocaleString("en")} are shown`;
}

function buildTabs() {
  const tabs = [...document.querySelectorAll('[role="tab"]')];
  const select = (tab) => {
    for (const other of tabs) {
      const on = other === tab;
      other.setAttribute("aria-selected", on);
      other.tabIndex = on ? 0 : -1;
      document.getElementById(other.getAttribute("aria-controls")).hidden = !on;
    }
    tab.focus();
    hintAtMore();
  };
  tabs.forEach((tab, k) => {
    tab.addEventListener("click", () => select(tab));
    tab.addEventListener("keydown", (event) => {
      const step = { ArrowRight: 1, ArrowLeft: -1 }[event.key];
      if (step) select(tabs[(k + step + tabs.length) % tabs.length]);
    });
  });
}

// A table that is wider than the screen says so, and where it is cut.
function hintAtMore() {
  const panels = [...document.querySelectorAll("#results .scroll")];
  for (const panel of panels) {
    panel.classList.toggle("cut", panel.scrollLeft + panel.clientWidth < panel.scrollWidth - 1);
  }
  document.querySelector("[data-more]").hidden = !panels.some((panel) => panel.scrollWidth > panel.clientWidth + 1);
}
document.querySelectorAll("#results .scroll").forEach((panel) => panel.addEventListener("scroll", hintAtMore));
window.addEventListener("resize", hintAtMore);

let planned = 0;
function update() {
  const rows = DATA.rows.filter(isShown);
  const runs = rows.reduce((n, row) => n + row.runs.filter(hasSeed).length, 0);
  document.getElementById("shown").textContent = `${runs} of ${DATA.runs.length} run${DATA.runs.length === 1 ? "" : "s"} in ${rows.length} of ${DATA.rows.length} row${DATA.rows.length === 1 ? "" : "s"}`;
  document.querySelector(".nothing").hidden = rows.length > 0;
  updateTables();
  hintAtMore();
  updateGallery(rows);
  // Plots cost more: of many changes at once only the last is drawn.
  clearTimeout(planned);
  planned = setTimeout(() => drawPlots(DATA.rows.filter(isShown)));
}
