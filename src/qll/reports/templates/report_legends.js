// What stands around the plots: names that tell rows apart, legends, and the figures as tables.

const titleOf = (row) => DATA.groups[row.group].title;
const short = (row) => (row.short ? " (short run)" : "");

// The rows' names; where several rows of one plot have the same, with what tells them apart.
function labelsOf(rows, name = (row) => row.name) {
  const parts = [
    (row) => `${DATA.groups[row.group].epochs} epochs`,
    (row) => `ε = ${DATA.groups[row.group].epsilon}`,
    (row) => (row.marks.length ? `note ${row.marks.join(", ")}` : "no note"),
  ];
  return new Map(rows.map((row) => {
    let peers = rows.filter((other) => name(other) === name(row));
    let text = name(row);
    for (const part of parts) {
      if (peers.every((other) => part(other) === part(row))) continue;
      text += `, ${part(row)}`;
      peers = peers.filter((other) => part(other) === part(row));
    }
    return [row, text];
  }));
}

// One entry a text: the same logic has the same colour and symbol in all plots.
function setLegend(key, rows, labels, lines) {
  const entries = new Map(rows.map((row) => [labels ? labels.get(row) : row.name, row]));
  const list = document.querySelector(`[data-legend="${key}"]`);
  list.replaceChildren(...[...entries].map(([text, row]) => {
    const item = document.createElement("li");
    item.innerHTML = lines ? `<svg viewBox="0 0 12 12" aria-hidden="true"><path d="M0 6h12" stroke="${row.colour}" stroke-width="3"/></svg>` : swatch(row);
    item.append(text);
    return item;
  }));
  list.hidden = !entries.size;
}

// --- the figures as tables, made when they are opened and again when the choice changes ---

const figureMakers = new Map();

function setFigures(key, make) {
  const details = document.querySelector(`[data-figures="${key}"]`);
  if (!figureMakers.has(key)) details.addEventListener("toggle", () => fillFigures(details));
  figureMakers.set(key, make);
  fillFigures(details);
}

function fillFigures(details) {
  const { head, blocks } = details.open ? figureMakers.get(details.dataset.figures)() : { head: [], blocks: [] };
  details.querySelector(".scroll").replaceChildren(...(blocks.length ? [figureTable(head, blocks)] : []));
}

function figureTable(head, blocks) {
  const table = document.createElement("table");
  table.className = "results";
  const line = (parent, texts, tag) => {
    const tr = parent.insertRow();
    texts.forEach((text, k) => {
      const cell = document.createElement(k ? tag : "th");
      if (cell.tagName === "TH") cell.scope = tag === "th" ? "col" : "row";
      if (k) cell.className = "number";
      cell.textContent = text;
      tr.append(cell);
    });
  };
  line(table.createTHead(), head, "th");
  for (const { title, lines } of blocks) {
    const body = table.createTBody();
    const cell = Object.assign(document.createElement("th"), { colSpan: head.length, scope: "rowgroup" });
    cell.append(Object.assign(document.createElement("span"), { textContent: title }));
    const heading = body.insertRow();
    heading.className = "title";
    heading.append(cell);
    lines.forEach((texts) => line(body, texts, "td"));
  }
  return table;
}

const blocksOf = (rows, line) => unique(rows.map((row) => row.group)).sort((a, b) => a - b).map((group) => {
  const own = rows.filter((row) => row.group === group);
  const labels = labelsOf(own);
  return { title: DATA.groups[group].title, lines: own.map((row) => [labels.get(row) + short(row), ...line(row, own)]) };
});

function accuracyFigures(rows) {
  const published = (row, metric) => {
    const found = row.paper[METRIC[metric]];
    return found ? written({ mean: found[0], deviation: found[1] }) : "";
  };
  const some = rows.some((row) => published(row, "PAcc") || published(row, "CSat"));
  return {
    head: ["Logic", "PAcc", "CSat", "On the front", ...(some ? ["Published PAcc", "Published CSat"] : [])],
    blocks: blocksOf(rows, (row, own) => [
      written(stat(row, "PAcc")), written(stat(row, "CSat")), own.length > 1 && frontOf(own).includes(row) ? "yes" : "",
      ...(some ? [published(row, "PAcc"), published(row, "CSat")] : []),
    ]),
  };
}

function optimismFigures(rows) {
  const metrics = ["CSec_self", "CSec_qll", "CSat"];
  return {
    head: ["Logic", "CSec, own attack", "CSec, QLL's attack", "CSat"],
    blocks: blocksOf(rows, (row) => metrics.map((metric) => written(stat(row, metric)))),
  };
}

const CURVE_COLUMNS = 6;
function curveFigures(rows, panels) {
  const epochs = unique(rows.flatMap((row) => row.runs.flatMap((run) => run.curves.epoch))).sort((a, b) => a - b);
  const last = Math.min(CURVE_COLUMNS, epochs.length) - 1;
  const columns = last > 0 ? Array.from({ length: last + 1 }, (_, k) => epochs[Math.round(k * (epochs.length - 1) / last)]) : epochs;
  const labels = labelsOf(rows);
  const blocks = panels.flatMap((panel) => panel.names.map((name) => ({ name, scale: panel.scale }))).map(({ name, scale }) => ({
    title: LABELS[name] + (scale === 100 ? ", %" : ""),
    lines: rows.map((row) => [row, bandOf(row, name)]).filter(([, band]) => band).map(([row, band]) => [
      labels.get(row) + short(row),
      ...columns.map((epoch) => {
        const k = band.epochs.indexOf(epoch);
        return k < 0 ? "" : String(Number((band.mean[k] * scale).toPrecision(4)));
      }),
    ]),
  }));
  return { head: ["Mean at epoch", ...columns.map(String)], blocks: blocks.filter((block) => block.lines.length) };
}

function timeFigures(rows) {
  const times = new Map(rows.map((row) => [row, timesOf(row)]));
  const slowest = Math.max(...rows.map((row) => times.get(row).at(-1)));
  const limits = [0.001, 0.01, 0.1, 1, 10, 100, 1000].filter((limit, k, all) => k === 0 || all[k - 1] < slowest);
  return {
    head: ["Queries decided within", ...limits.map((limit) => `${limit} s`), "Slowest"],
    blocks: blocksOf(rows, (row) => [
      ...limits.map((limit) => String(times.get(row).filter((t) => t <= limit).length)), `${times.get(row).at(-1)} s`,
    ]),
  };
}
