// Plots, one for each experiment that is shown. Each is drawn when it comes into view.

const FONT = { family: 'system-ui, -apple-system, "Segoe UI", Roboto, "Liberation Sans", sans-serif', size: 12, color: "#1f2937" };
const CONFIG = { displaylogo: false, responsive: true, modeBarButtonsToRemove: ["lasso2d", "select2d", "autoScale2d"] };
const GRID = "#e5e7eb";

function layoutOf(title, x, y) {
  const axis = (text, more) => ({ title: { text, standoff: 6 }, gridcolor: GRID, zeroline: false, linecolor: "#94a3b8", ticks: "outside", tickcolor: "#94a3b8", automargin: true, ...more });
  return {
    title: { text: title, font: { size: 13 }, x: 0, xanchor: "left", xref: "paper", y: 0.98, yanchor: "top" },
    font: FONT, margin: { l: 52, r: 14, t: 34, b: 44 }, paper_bgcolor: "#fff", plot_bgcolor: "#fff",
    showlegend: false, hovermode: "closest", xaxis: axis(x.text, x.more), yaxis: axis(y.text, y.more),
  };
}

const pairTitle = (pair) => `${DATA.pairs[pair].property}, ${DATA.pairs[pair].data}`;
const percent = (text, more) => ({ text, more: { ticksuffix: " %", ...more } });
const hover = (row) => `${row.name}${row.short ? " (short run)" : ""}`;

// --- drawing lazily, and only what changed ---

const waiting = new Map();
const seen = "IntersectionObserver" in window ? new IntersectionObserver((entries) => {
  entries.filter((e) => e.isIntersecting).forEach((e) => drawNow(e.target));
}, { rootMargin: "300px" }) : null;

function drawNow(element) {
  const make = waiting.get(element);
  if (!make) return;
  waiting.delete(element);
  const { traces, layout } = make();
  element.dataset.points = traces.reduce((n, t) => n + (t.x ? t.x.length : 0), 0);
  Plotly.react(element, traces, layout, CONFIG).then(() => { element.dataset.drawn = "yes"; });
}

function place(box, key, label, make) {
  let element = box.querySelector(`[data-key="${key}"]`);
  if (!element) {
    element = document.createElement("div");
    element.className = "plot";
    element.dataset.key = key;
    box.append(element);
    if (seen) seen.observe(element);
  }
  element.setAttribute("role", "img");
  element.setAttribute("aria-label", label);
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
    Plotly.purge(element);
    element.remove();
  }
  let note = box.querySelector(".empty");
  if (!note) { note = document.createElement("p"); note.className = "empty"; box.append(note); }
  note.textContent = "No record of the chosen runs has the figures for this plot.";
  note.hidden = keys.length > 0;
}

// --- scatter plots ---

function scatter(box, title, rows, options) {
  const pairs = unique(rows.map((row) => row.pair)).filter((pair) =>
    rows.some((row) => row.pair === pair && options.points(row).length));
  keepOnly(box, pairs.map(String));
  for (const pair of pairs) {
    const own = rows.filter((row) => row.pair === pair);
    place(box, String(pair), `${title}: ${pairTitle(pair)}`, () => ({
      traces: options.traces(own),
      layout: options.layout(pair, own),
    }));
  }
}

const pointsOf = (x, y) => (row) => row.runs.filter(hasSeed)
  .map((run) => [run.figures[METRIC[x]], run.figures[METRIC[y]], run.seed])
  .filter(([a, b]) => a !== null && b !== null);

function seedTrace(row, points, open) {
  return {
    x: points.map((p) => p[0]), y: points.map((p) => p[1]), text: points.map((p) => `${hover(row)}, seed ${p[2]}`),
    mode: "markers", type: "scatter", hovertemplate: "%{text}<br>%{x:.1f}, %{y:.1f}<extra></extra>",
    marker: { color: row.colour, size: 5, opacity: 0.35, symbol: row.symbol + (open ? "-open" : "") },
  };
}

function meanTrace(row, x, y, open) {
  const [a, b] = [stat(row, x), stat(row, y)];
  if (!a || !b) return null;
  const bar = (s) => ({ type: "data", array: [s.deviation || 0], color: `${row.colour}70`, thickness: 1, width: 0 });
  return {
    x: [a.mean], y: [b.mean], error_x: bar(a), error_y: bar(b), mode: "markers", type: "scatter",
    hovertemplate: `<b>${hover(row)}</b><br>${x} ${written(a)}<br>${y} ${written(b)}<extra></extra>`,
    marker: { color: row.colour, size: 11, symbol: row.symbol + (open ? "-open" : ""), line: { color: open ? row.colour : "#fff", width: open ? 2 : 1 } },
  };
}

function paretoTrace(rows) {
  const means = rows.map((row) => [stat(row, "PAcc"), stat(row, "CSat")]).filter(([a, b]) => a && b)
    .map(([a, b]) => [a.mean, b.mean]).sort((p, q) => q[0] - p[0] || q[1] - p[1]);
  const front = [];
  for (const point of means) if (!front.length || point[1] > front[front.length - 1][1]) front.push(point);
  // From the most accurate leftwards, then up to the next: the edge of what is dominated.
  return {
    x: front.map((p) => p[0]), y: front.map((p) => p[1]), mode: "lines", type: "scatter", hoverinfo: "skip", name: "front",
    line: { color: "#334155", width: 1.5, dash: "dot", shape: "hv" },
  };
}

function drawAccuracy(rows) {
  scatter(document.querySelector('[data-plot="accuracy"]'), "PAcc against CSat", rows, {
    points: pointsOf("PAcc", "CSat"),
    traces: (own) => [
      paretoTrace(own),
      ...own.map((row) => seedTrace(row, pointsOf("PAcc", "CSat")(row))),
      ...own.filter((row) => row.paper[METRIC.PAcc] && row.paper[METRIC.CSat]).map((row) => ({
        x: [row.paper[METRIC.PAcc][0]], y: [row.paper[METRIC.CSat][0]], mode: "markers", type: "scatter",
        hovertemplate: `<b>${row.name}</b>, published<br>%{x:.1f}, %{y:.1f}<extra></extra>`,
        marker: { color: row.colour, size: 10, symbol: `${row.symbol}-open`, line: { width: 1.5 } },
      })),
      ...own.map((row) => meanTrace(row, "PAcc", "CSat")).filter(Boolean),
    ],
    layout: (pair) => layoutOf(pairTitle(pair), percent("PAcc"), percent("CSat", { range: [-4, 104] })),
  });
}

function drawOptimism(rows) {
  const both = (row) => [...pointsOf("CSec_self", "CSat")(row), ...pointsOf("CSec_qll", "CSat")(row)];
  scatter(document.querySelector('[data-plot="optimism"]'), "CSec against CSat", rows, {
    points: both,
    traces: (own) => [
      { x: [0, 100], y: [0, 100], mode: "lines", type: "scatter", hoverinfo: "skip", line: { color: "#94a3b8", width: 1, dash: "dash" } },
      ...own.flatMap((row) => [
        seedTrace(row, pointsOf("CSec_self", "CSat")(row)),
        meanTrace(row, "CSec_qll", "CSat", true),
        meanTrace(row, "CSec_self", "CSat"),
      ]).filter(Boolean),
    ],
    layout: (pair) => layoutOf(pairTitle(pair), percent("CSec", { range: [-4, 104] }), percent("CSat", { range: [-4, 104] })),
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

function curveTraces(rows, names, scale) {
  const traces = [];
  for (const row of rows) {
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
        line: { color: row.colour, width: 1.8, dash: k ? "dot" : "solid" },
        hovertemplate: `<b>${hover(row)}</b> ${LABELS[name]}<br>epoch %{x}: %{y:.4g}<extra></extra>`,
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
  const pair = Number(document.getElementById("curves-pair").value);
  const own = rows.filter((row) => row.pair === pair);
  const box = document.querySelector('[data-plot="curves"]');
  const panels = PANELS.filter((panel) => own.some((row) => panel.names.some((name) => bandOf(row, name))));
  keepOnly(box, panels.map((panel) => panel.key));
  for (const panel of panels) {
    place(box, panel.key, `${panel.title}: ${pairTitle(pair)}`, () => ({
      traces: curveTraces(own, panel.names, panel.scale),
      layout: layoutOf(panel.title, { text: "epoch" }, panel.y),
    }));
  }
}

// --- verification times ---

function drawTimes(rows) {
  const pair = document.getElementById("times-pair").value;
  const own = rows.filter((row) => (pair === "all" || row.pair === Number(pair)) && row.runs.some((run) => hasSeed(run) && run.times.length));
  const box = document.querySelector('[data-plot="times"]');
  keepOnly(box, own.length ? ["times"] : []);
  if (!own.length) return;
  place(box, "times", "Queries decided within a time limit", () => ({
    traces: own.map((row) => {
      const times = row.runs.filter(hasSeed).flatMap((run) => run.times).sort((a, b) => a - b);
      const name = pair === "all" ? `${row.name}, ${pairTitle(row.pair)}` : hover(row);
      return {
        x: times.map((_, k) => k + 1), y: times.map((t) => Math.max(t, 1e-6)), mode: "lines", type: "scatter", name,
        line: { color: row.colour, width: 1.8 }, hovertemplate: `<b>${name}</b><br>%{x} decided within %{y:.3g} s<extra></extra>`,
      };
    }),
    layout: layoutOf("", { text: "queries decided" }, { text: "seconds a query", more: { type: "log", exponentformat: "power" } }),
  }));
}

// --- all together ---

function drawPlots(rows) {
  fillPairs("curves-pair", rows, false);
  fillPairs("times-pair", rows, true);
  drawAccuracy(rows);
  drawOptimism(rows);
  drawCurves(rows);
  drawTimes(rows);
}

// The choice of an experiment follows the filters and is kept while it is among them.
function fillPairs(id, rows, withAll) {
  const select = document.getElementById(id);
  const held = select.value;
  const pairs = unique(rows.map((row) => row.pair)).map(String);
  const values = withAll && pairs.length > 1 ? [...pairs, "all"] : pairs;
  select.replaceChildren(...values.map((value) => new Option(value === "all" ? "all of them" : pairTitle(Number(value)), value)));
  if (values.includes(held)) select.value = held;
}

buildFilters();
buildTabs();
document.getElementById("curves-pair").addEventListener("change", () => drawCurves(DATA.rows.filter(isShown)));
document.getElementById("times-pair").addEventListener("change", () => drawTimes(DATA.rows.filter(isShown)));
update();
document.documentElement.dataset.ready = "yes";
