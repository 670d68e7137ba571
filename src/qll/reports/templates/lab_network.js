"use strict";
// One region: asked as one moves, drawn as it comes; only the latest question counts.

const DATA = JSON.parse(document.getElementById("data").textContent);
const $ = (id) => document.getElementById(id);
const STEPS = 200;
let asked = 0, timer = null;

// Quadratic, so that small radii have room.
const radius = () => DATA.most * (Number($("epsilon").value) / STEPS) ** 2;
const short = (v) => (v === null ? "unbounded" : Number(v.toPrecision(4)).toString());

function setUp() {
  $("point").max = DATA.points - 1;
  $("epsilon").value = Math.round(STEPS * Math.sqrt(DATA.epsilon / DATA.most));
  $("controls").addEventListener("submit", (event) => event.preventDefault());
  $("controls").addEventListener("input", () => { show(); ask(120); });
  show();
  ask(0);
}

function show() { $("epsilon-value").textContent = short(radius()); }

function ask(wait) {
  clearTimeout(timer);
  timer = setTimeout(examine, wait);
}

async function examine() {
  const number = ++asked;
  document.body.classList.add("busy");
  const body = { point: Number($("point").value), epsilon: radius(), seconds: Number($("seconds").value) };
  const begun = performance.now();
  let reply = null, error = null;
  try {
    const answer = await fetch("examine", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(body) });
    const content = await answer.json();
    if (answer.ok) reply = content; else error = content.error || { what: content.refused };
  } catch (gone) { error = { what: "the lab does not answer", fix: "start qll lab again" }; }
  if (number !== asked) return;
  document.body.classList.remove("busy");
  document.body.classList.toggle("outdated", error !== null);
  $("error").hidden = error === null;
  if (error) { $("error").textContent = [error.what, error.expected && "Expected " + error.expected, error.found && "found " + error.found, error.fix && "Fix: " + error.fix].filter(Boolean).join(". "); return; }
  draw(reply);
  $("took").textContent = `${((performance.now() - begun) / 1000).toFixed(1)} s`;
  document.documentElement.dataset.drawn = Number(document.documentElement.dataset.drawn || 0) + 1;
}

function draw(reply) {
  $("label").textContent = reply.label;
  $("verdict").textContent = reply.said[0];
  $("verdict").className = "verdict " + reply.status;
  $("said").textContent = reply.said.slice(1).map((line) => line.slice(2)).join("\n");
  const attack = reply.attack.falsified ? "breaks the rule" : "does not break the rule, which proves nothing";
  $("status").textContent = `The attack ${attack} (margin ${short(reply.attack.margin)}).`;
  drawInput(reply);
  $("bars").replaceChildren(bars(reply.outputs));
}

function drawInput(reply) {
  const pictures = reply.pictures;
  $("largest").textContent = pictures ? `largest change ${pictures.largest}` : "what moved most, within its range";
  const shown = pictures ? [["data point", pictures.clean], ["worst found", pictures.attacked], ["change", pictures.change]] : [];
  $("pictures").replaceChildren(...shown.map(([name, address]) => {
    const figure = document.createElement("figure"), image = document.createElement("img"), caption = document.createElement("figcaption");
    image.src = address; image.alt = name; caption.textContent = name;
    figure.append(image, caption);
    return figure;
  }));
  $("features").replaceChildren(...(pictures ? [] : [bars(reply.features.map((f) => ({
    name: f.name, clean: 0, attacked: f.upper > f.lower ? (f.after - f.before) / (f.upper - f.lower) : 0,
    interval: f.upper > f.lower ? [(f.lower - f.before) / (f.upper - f.lower), (f.upper - f.before) / (f.upper - f.lower)] : null, crown: null,
    text: `${short(f.before)} → ${short(f.after)}` })))]));
}

function make(name, attributes, text) {
  const node = document.createElementNS("http://www.w3.org/2000/svg", name);
  for (const [key, value] of Object.entries(attributes)) node.setAttribute(key, value);
  if (text !== undefined) node.textContent = text;
  return node;
}

// A row for each: its bounds as bars, its values as marks. Bounds that are far away are cut, and say so.
function bars(rows) {
  const width = 720, left = 150, right = 130, height = 24;
  const marks = rows.flatMap((r) => [r.clean, r.attacked]).filter((v) => v !== null);
  const tight = rows.flatMap((r) => r.crown || r.interval || []).filter((v) => v !== null);
  const low = Math.min(0, ...marks, ...tight), high = Math.max(0, ...marks, ...tight), room = (high - low || 1) * 0.05;
  const place = (v) => left + (width - left - right) * (Math.min(Math.max(v, low - room), high + room) - low + room) / (high - low + 2 * room || 1);
  const svg = make("svg", { class: "bars", viewBox: `0 0 ${width} ${rows.length * height + 8}`, role: "img", "aria-label": "bounds and values" });
  svg.append(make("line", { x1: place(0), x2: place(0), y1: 0, y2: rows.length * height + 4, stroke: "#94a3b8", "stroke-dasharray": "3 3" }));
  rows.forEach((row, k) => {
    const y = k * height + 14;
    svg.append(make("text", { x: left - 8, y: y + 4, "text-anchor": "end" }, row.name));
    for (const [ends, colour, thick] of [[row.interval, "#bfdbfe", 14], [row.crown, "#3b82f6", 8]]) {
      if (!ends || ends.includes(null)) continue;
      svg.append(make("rect", { x: place(ends[0]), width: Math.max(1, place(ends[1]) - place(ends[0])), y: y - thick / 2, height: thick, rx: 2, fill: colour }));
    }
    svg.append(make("circle", { cx: place(row.clean), cy: y, r: 4, fill: "#111827" }));
    const x = place(row.attacked);
    svg.append(make("path", { d: `M${x - 4},${y - 4}L${x + 4},${y + 4}M${x - 4},${y + 4}L${x + 4},${y - 4}`, stroke: "#b42318", "stroke-width": 2 }));
    svg.append(make("text", { x: width - right + 8, y: y + 4, fill: "#5b6472" }, row.text || `${short(row.clean)} → ${short(row.attacked)}`));
  });
  return svg;
}

setUp();
