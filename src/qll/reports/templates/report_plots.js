// Plots, one for each group of rows that can be compared. Each is drawn when it comes into view.

const FONT = { family: 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif', size: 12, color: "#1f2937" };
const CONFIG = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };
const GRID = "#e5e7eb";

function layoutOf(x, y) {
  const axis = (text, more) => ({ title: { text, standoff: 6 }, gridcolor: GRID, zeroline: false, linecolor: "#94a3b8", ticks: "outside", tickcolor: "#94a3b8", automargin: true, ...more });
  return {
    font: FONT, margin: { l: 52, r: 14, t: 12, b: 44 }, paper_bgcolor: "#fff", plot_bgcolor: "#fff",
    showlegend: false, hovermode: "closest", xaxis: axis(x.text, x.more), yaxis: axis(y.text, y.more),
  };
}

const percent = (text, more) => ({ text, more: { ticksuffix: " %", ...more } });

// --- drawing lazily, and only what changed ---

const waiting = new Map();
const drawing = new Set();
const seen = "IntersectionObserver" in window ? new IntersectionObserver((entries) => {
  entries.filter((e) => e.isIntersecting).forEach((e) => drawNow(e.target));
}, { rootMargin: "300px" }) : null;

// Plotly works on after its call returns: a plot is drawn again, or given up, only when it is done.
function drawNow(element) {
  const make = waiting.get(element);
  if (!make || drawing.has(element)) return;
  waiting.delete(element);
  drawing.add(element);
  const { traces, layout } = make();
  element.dataset.points = traces.reduce((n, t) => n + (t.x ? t.x.length : 0), 0);
  Plotly.react(element, traces, layout, CONFIG).then(() => "yes", (error) => {
    if (element.isConnected) console.error(error);
    return "failed";
  }).then((state) => {
    drawing.delete(element);
    if (!element.isConnected) Plotly.purge(element);
    else if (waiting.has(element)) drawNow(element);
    else element.dataset.drawn = state;
  });
}

// What was never scrolled into view is drawn for the printer, and beforehand while nothing else happens:
// a page that is printed shows every plot.
const PRINTED = { one: 640, two: 312 }; // pixels: the width of a page, and half of it
function setWidth(width) {
  for (const element of document.querySelectorAll(".plot[data-drawn]")) {
    if (!element.querySelector(".main-svg")) continue;
    const own = width && (element.closest(".plots.one") ? width.one : width.two);
    Plotly.relayout(element, own ? { autosize: false, width: own } : { autosize: true, width: null });
  }
}
window.addEventListener("beforeprint", () => { [...waiting.keys()].forEach(drawNow); setWidth(PRINTED); });
window.addEventListener("afterprint", () => setWidth(null));
const idle = window.requestIdleCallback || ((work) => setTimeout(work, 200));
let planning = false;
function drawRest() {
  if (planning) return;
  planning = true;
  idle(() => {
    planning = false;
    const next = [...waiting.keys()].find((element) => !drawing.has(element));
    if (next) drawNow(next);
    if (waiting.size) drawRest();
  });
}

function place(box, key, title, label, make) {
  let element = box.querySelector(`.plot[data-key="${key}"]`);
  if (!element) {
    const panel = document.createElement("div");
    panel.className = "panel";
    element = document.createElement("div");
    element.className = "plot";
    element.dataset.key = key;
    panel.append(document.createElement("h3"), element);
    box.append(panel);
    if (seen) seen.observe(element);
  }
  const heading = element.parentElement.querySelector("h3");
  heading.textContent = title;
  heading.hidden = !title;
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", `${label}. The figures are in the table below.`);
  element.dataset.drawn = "no";
  waiting.set(element, make);
  const frame = element.getBoundingClientRect();
  if (!seen || (frame.top < window.innerHeight + 300 && frame.bottom > -300)) drawNow(element);
  return element;
}

function keepOnly(box, keys) {
  for (const element of [...box.querySelectorAll(".plot")]) {
    if (keys.includes(element.dataset.key)) continue;
    waiting.delete(element);
    if (seen) seen.unobserve(element);
    element.parentElement.remove();
    if (!drawing.has(element)) Plotly.purge(element);
  }
  let note = box.querySelector(".empty");
  if (!note) { note = document.createElement("p"); note.className = "empty"; box.append(note); }
  note.textContent = DATA.rows.some(isShown) ? "No record of the chosen runs has the figures for this plot." : "Every run is filtered out.";
  note.hidden = keys.length > 0;
  document.querySelector(`[data-figures="${box.dataset.plot}"]`).hidden = !keys.length;
}

// --- scatter plots ---

function scatter(key, title, rows, options) {
  const drawn = rows.filter((row) => options.points(row).length);
  const groups = unique(drawn.map((row) => row.group)).sort((a, b) => a - b);
  const box = document.querySelector(`[data-plot="${key}"]`);
  keepOnly(box, groups.map(String));
  setLegend(key, drawn);
  setFigures(key, () => options.figures(drawn));
  for (const group of groups) {
    const own = drawn.filter((row) => row.group === group);
    const labels = labelsOf(own);
    const element = place(box, String(group), DATA.groups[group].title, `${title}: ${DATA.groups[group].title}`, () => ({
      traces: options.traces(own, (row) => labels.get(row) + short(row)),
      layout: options.layout,
    }));
    box.append(element.parentElement); // in the order of the table
  }
}

const pointsOf = (x, y) => (row) => row.runs.filter(hasSeed)
  .map((run) => [run.figures[METRIC[x]], run.figures[METRIC[y]], run.seed])
  .filter(([a, b]) => a !== null && b !== null);

function seedTrace(row, label, points) {
  return {
    x: points.map((p) => p[0]), y: points.map((p) => p[1]), text: points.map((p) => `${label}, seed ${p[2]}`),
    mode: "markers", type: "scatter", hovertemplate: "%{text}<br>%{x:.1f}, %{y:.1f}<extra></extra>",
    marker: { color: row.colour, size: 5, opacity: 0.35, symbol: row.symbol },
  };
}

function meanTrace(row, label, x, y, open) {
  const [a, b] = [stat(row, x), stat(row, y)];
  if (!a || !b) return null;
  const bar = (s) => ({ type: "data", array: [s.deviation || 0], color: `${row.colour}70`, thickness: 1, width: 0 });
  return {
    x: [a.mean], y: [b.mean], error_x: bar(a), error_y: bar(b), mode: "markers", type: "scatter",
    hovertemplate: `<b>${label}</b><br>${x} ${written(a)}<br>${y} ${written(b)}<extra></extra>`,
    marker: { color: row.colour, size: 11, symbol: row.symbol + (open ? "-open" : ""), line: { color: open ? row.colour : "#fff", width: open ? 2 : 1 } },
  };
}

// From the most accurate on: rows that no other row of the group beats in both.
function frontOf(rows) {
  const points = rows.map((row) => ({ row, x: stat(row, "PAcc"), y: stat(row, "CSat") })).filter(({ x, y }) => x && y)
    .sort((p, q) => q.x.mean - p.x.mean || q.y.mean - p.y.mean);
  let [best, at] = [-Infinity, NaN];
  return points.filter(({ x, y }) => {
    const on = y.mean > best || (y.mean === best && x.mean === at);
    if (on) [best, at] = [y.mean, x.mean];
    return on;
  }).map(({ row }) => row);
}

function paretoTrace(rows) {
  const front = frontOf(rows).map((row) => [stat(row, "PAcc").mean, stat(row, "CSat").mean]);
  // Leftwards, then up to the next: the edge of what is dominated.
  return {
    x: front.map((p) => p[0]), y: front.map((p) => p[1]), mode: "lines", type: "scatter", hoverinfo: "skip", name: "front",
    line: { color: "#334155", width: 1.5, dash: "dot", shape: "hv" },
  };
}

function drawAccuracy(rows) {
  const points = pointsOf("PAcc", "CSat");
  scatter("accuracy", "PAcc against CSat", rows, {
    points,
    figures: accuracyFigures,
    traces: (own, label) => [
      paretoTrace(own),
      ...own.map((row) => seedTrace(row, label(row), points(row))),
      ...own.filter((row) => row.paper[METRIC.PAcc] && row.paper[METRIC.CSat]).map((row) => ({
        x: [row.paper[METRIC.PAcc][0]], y: [row.paper[METRIC.CSat][0]], mode: "markers", type: "scatter",
        hovertemplate: `<b>${row.name}</b>, published<br>%{x:.1f}, %{y:.1f}<extra></extra>`,
        marker: { color: row.colour, size: 10, symbol: `${row.symbol}-open`, line: { width: 1.5 } },
      })),
      ...own.map((row) => meanTrace(row, label(row), "PAcc", "CSat")).filter(Boolean),
    ],
    layout: layoutOf(percent("PAcc"), percent("CSat", { range: [-4, 104] })),
  });
}

function drawOptimism(rows) {
  const points = pointsOf("CSec_self", "CSat");
  scatter("optimism", "CSec against CSat", rows, {
    points: (row) => [...points(row), ...pointsOf("CSec_qll", "CSat")(row)],
    figures: optimismFigures,
    traces: (own, label) => [
      { x: [0, 100], y: [0, 100], mode: "lines", type: "scatter", hoverinfo: "skip", line: { color: "#94a3b8", width: 1, dash: "dash" } },
      ...own.flatMap((row) => [
        seedTrace(row, label(row), points(row)),
        meanTrace(row, label(row), "CSec_qll", "CSat", true),
        meanTrace(row, label(row), "CSec_self", "CSat"),
      ]).filter(Boolean),
    ],
    layout: layoutOf(percent("CSec", { range: [-4, 104] }), percent("CSat", { range: [-4, 104] })),
  });
}

// --- training curves ---

function bandOf(row, name) {
  const runs = row.runs.filter((run) => hasSeed(run) && run.curves[name]);
  if (!runs.length) return null;
  const byEpoch = new Map();
  for (const run of runs) {
    run.curves.epoch.forEach((epoch, k) => {
      const value = run.curves[name][k];
      if (value !== null) byEpoch.set(epoch, [...(byEpoch.get(epoch) || []), value]);
    });
  }
  const epochs = [...byEpoch.keys()].sort((a, b) => a - b);
  const values = epochs.map((epoch) => byEpoch.get(epoch));
  return {
    epochs,
    mean: values.map((v) => v.reduce((a, b) => a + b, 0) / v.length),
    low: values.map((v) => Math.min(...v)), high: values.map((v) => Math.max(...v)),
  };
}

// Rows of one name have one colour: the second is dashed, and so on.
const DASHES = [["solid", "dot"], ["dash", "4px,6px"], ["longdash", "2px,8px"]];
const dashesOf = (row, rows) => DASHES[rows.filter((other) => other.name === row.name).indexOf(row) % DASHES.length];

function curveTraces(rows, names, scale) {
  const traces = [];
  const labels = labelsOf(rows);
  for (const row of rows) {
    const dashes = dashesOf(row, rows);
    names.forEach((name, k) => {
      const band = bandOf(row, name);
      if (!band) return;
      const times = (values) => values.map((v) => v * scale);
      if (k === 0 && row.runs.filter(hasSeed).length > 1) {
        traces.push({
          x: [...band.epochs, ...[...band.epochs].reverse()], y: times([...band.high, ...[...band.low].reverse()]),
          fill: "toself", fillcolor: `${row.colour}1a`, line: { width: 0 }, mode: "lines", type: "scatter", hoverinfo: "skip",
        });
      }
      traces.push({
        x: band.epochs, y: times(band.mean), mode: band.epochs.length < 3 ? "lines+markers" : "lines", type: "scatter",
        line: { color: row.colour, width: 1.8, dash: dashes[k] },
        hovertemplate: `<b>${labels.get(row)}${short(row)}</b> ${LABELS[name]}<br>epoch %{x}: %{y:.4g}<extra></extra>`,
      });
    });
  }
  return traces;
}

const LABELS = {
  pacc: "PAcc", train_csec: "CSec while training", prediction_loss: "prediction loss", property_loss: "property loss",
  lambda: "λ", prediction_norm: "‖∇ prediction‖", property_norm: "‖∇ property‖",
};
const PANELS = [
  { key: "accuracy", title: "PAcc (solid), CSec of training batches (dotted)", names: ["pacc", "train_csec"], scale: 100, y: percent("") },
  { key: "loss", title: "Prediction loss (solid), property loss (dotted)", names: ["prediction_loss", "property_loss"], scale: 1, y: { text: "" } },
  { key: "lambda", title: "λ", names: ["lambda"], scale: 1, y: { text: "", more: { type: "log", exponentformat: "power" } } },
  { key: "norms", title: "Gradient norms: property (solid), prediction (dotted)", names: ["property_norm", "prediction_norm"], scale: 1, y: { text: "", more: { type: "log", exponentformat: "power" } } },
];

function drawCurves(rows) {
  const group = document.getElementById("curves-group").value;
  const own = rows.filter((row) => String(row.group) === group);
  const box = document.querySelector('[data-plot="curves"]');
  const panels = PANELS.filter((panel) => own.some((row) => panel.names.some((name) => bandOf(row, name))));
  keepOnly(box, panels.map((panel) => panel.key));
  setLegend("curves", own, labelsOf(own), true);
  setFigures("curves", () => curveFigures(own, panels));
  for (const panel of panels) {
    place(box, panel.key, panel.title, `${panel.title}: ${DATA.groups[group].title}`, () => ({
      traces: curveTraces(own, panel.names, panel.scale),
      layout: layoutOf({ text: "epoch" }, panel.y),
    }));
  }
}

// --- verification times ---

// Trivial queries take no time at all, which a logarithm cannot show: what is faster stands here.
const FASTEST = 1e-3;
const timesOf = (row) => row.runs.filter(hasSeed).flatMap((run) => run.times).sort((a, b) => a - b);

function drawTimes(rows) {
  const group = document.getElementById("times-group").value;
  const own = rows.filter((row) => (group === "all" || String(row.group) === group) && timesOf(row).length);
  const box = document.querySelector('[data-plot="times"]');
  const labels = labelsOf(own, group === "all" ? (row) => `${row.name}, ${titleOf(row)}` : undefined);
  keepOnly(box, own.length ? ["times"] : []);
  setLegend("times", own, group === "all" ? null : labels, true);
  setFigures("times", () => timeFigures(own));
  if (!own.length) return;
  const slowest = Math.max(FASTEST, ...own.map((row) => timesOf(row).at(-1)));
  place(box, "times", "", "Queries decided within a time limit", () => ({
    traces: own.map((row) => {
      const times = timesOf(row);
      const name = labels.get(row) + short(row);
      return {
        x: times.map((_, k) => k + 1), y: times.map((t) => Math.max(t, FASTEST)), mode: "lines", type: "scatter", name,
        line: { color: row.colour, width: 1.8, dash: group === "all" ? "solid" : dashesOf(row, own)[0] },
        hovertemplate: `<b>${name}</b><br>%{x} decided within %{y:.3g} s<extra></extra>`,
      };
    }),
    layout: layoutOf({ text: "queries decided" }, {
      text: "seconds a query", more: { type: "log", exponentformat: "power", dtick: 1, range: [Math.log10(FASTEST) - 0.1, Math.log10(slowest) + 0.2] },
    }),
  }));
}

// --- all together ---

function drawPlots(rows) {
  fillGroups("curves-group", rows, false);
  fillGroups("times-group", rows, true);
  drawAccuracy(rows);
  drawOptimism(rows);
  drawCurves(rows);
  drawTimes(rows);
  drawRest();
}

// The choice of an experiment follows the filters and is kept while it is among them; at first it is
// the one with most runs.
function fillGroups(id, rows, withAll) {
  const select = document.getElementById(id);
  const held = select.value;
  const groups = unique(rows.map((row) => row.group)).sort((a, b) => a - b).map(String);
  const values = withAll && groups.length > 1 ? [...groups, "all"] : groups;
  select.replaceChildren(...values.map((value) => new Option(value === "all" ? "all of them" : DATA.groups[value].title, value)));
  const runs = (group) => rows.filter((row) => String(row.group) === group).reduce((n, row) => n + row.runs.length, 0);
  const most = Math.max(...groups.map(runs));
  select.value = values.includes(held) ? held : groups.find((group) => runs(group) === most) ?? "";
  select.parentElement.hidden = !values.length;
}

buildFilters();
buildTabs();
const redraw = (draw) => () => { draw(DATA.rows.filter(isShown)); drawRest(); };
document.getElementById("curves-group").addEventListener("change", redraw(drawCurves));
document.getElementById("times-group").addEventListener("change", redraw(drawTimes));
update();
document.documentElement.dataset.ready = "yes";
