"use strict";
// Controls: what is asked, of Python or of what the page carries. Pictures are in lab_draw.js.

const DATA = JSON.parse(document.getElementById("data").textContent);
const STATIC = DATA.mode === "static";
const $ = (id) => document.getElementById(id);
const form = $("controls");
const state = { marker: [0, 0], reply: null, example: 0, asked: 0 };

// Served, the slider is logarithmic from 0.1 to 100, with infinity at its end; static, it steps.
const SLIDER_END = 61;
function hardness() {
  const at = Number($("hardness").value);
  if (STATIC) return DATA.hardnesses[at];
  return at >= SLIDER_END ? Infinity : Number((10 ** (-1 + at / 20)).toPrecision(2));
}

function setUp() {
  const slider = $("hardness");
  slider.min = 0;
  slider.max = STATIC ? DATA.hardnesses.length - 1 : SLIDER_END;
  slider.value = STATIC ? 1 : 20;
  $("example").replaceChildren(...DATA.examples.map((e, k) => new Option(e.name, k)));
  $("example").addEventListener("change", () => choose(Number($("example").value)));
  form.addEventListener("submit", (event) => event.preventDefault());
  form.addEventListener("input", (event) => {
    if (event.target.id === "example") return;
    if (event.target.id === "text") { $("backdrop").textContent = $("text").value; clearError(); }
    showSettings();
    ask(event.target.id === "text" ? 350 : 60);
  });
  $("text").addEventListener("scroll", () => { $("backdrop").scrollTop = $("text").scrollTop; });
  if (STATIC) $("choices").hidden = true;
  choose(0);
}

function choose(k) {
  state.example = k;
  state.reply = null;
  const example = DATA.examples[k];
  $("text").value = example.text;
  $("backdrop").textContent = example.text;
  state.marker = [0, 0];
  $("labels").value = "0";
  fillAxes(Math.max(...example.axes) + 1, example.axes);
  $("parameters").replaceChildren();
  clearError();
  showSettings();
  ask(0);
}

function showSettings() {
  const p = hardness();
  $("hardness-value").textContent = p === Infinity ? "∞" : p;
  $("hardness").setAttribute("aria-valuetext", p === Infinity ? "infinite" : String(p));
  $("epsilon-value").textContent = Number($("epsilon").value).toFixed(2);
}

function fillAxes(count, chosen) {
  for (const [id, at] of [["axis-x", chosen[0]], ["axis-y", chosen[1]]]) {
    const select = $(id);
    if (select.options.length !== count) {
      select.replaceChildren(...Array.from({ length: count }, (_, k) => new Option(`y[${k}]`, k)));
    }
    select.value = Math.min(at, count - 1);
  }
}

function showParameters(parameters) {
  const box = $("parameters");
  const shown = parameters.filter((p) => p.name !== "epsilon");
  const names = shown.map((p) => p.name).join(" ");
  if (box.dataset.names === names && box.children.length) return;
  box.dataset.names = names;
  box.replaceChildren(...shown.map((p) => {
    const label = document.createElement("label");
    const input = Object.assign(document.createElement("input"), { type: "number", step: "any", value: p.value, disabled: STATIC });
    input.dataset.parameter = p.name;
    label.append(`${p.name} (${p.unit}) `, input);
    return label;
  }));
}

// --- asking ---

let timer = 0;
let running = false;
let again = false;
function ask(delay) {
  clearTimeout(timer);
  timer = setTimeout(STATIC ? look : request, delay);
}

function question() {
  const p = hardness();
  const parameters = {};
  for (const input of document.querySelectorAll("#parameters input")) {
    if (input.value !== "") parameters[input.dataset.parameter] = Number(input.value);
  }
  const reach = Math.min(Math.max(Number($("reach").value) || 3, 0.1), 1000);
  return {
    text: $("text").value, axes: [Number($("axis-x").value), Number($("axis-y").value)],
    labels: $("labels").value.split(/[\s,]+/).filter((t) => /^\d+$/.test(t)).map(Number),
    others: Number($("others").value) || 0, hardness: p === Infinity ? "inf" : p,
    epsilon: Number($("epsilon").value), marker: state.marker, ends: [-reach, reach], parameters,
  };
}

// One request at a time: while one is under way, only the last wish is kept.
async function request() {
  if (running) { again = true; return; }
  running = true;
  document.body.classList.add("busy");
  try {
    const asked = question();
    const answer = await fetch("evaluate", {
      method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(asked),
    });
    const reply = await answer.json();
    // Of a formula that is no longer there, neither pictures nor errors: the new one was asked for too.
    const current = asked.text === $("text").value;
    if (current && reply.error) showError(reply.error);
    else if (reply.refused) outdate(reply.refused);
    else if (current) { clearError(); accept(reply); }
  } catch (error) {
    outdate("The lab does not answer. Is 'qll lab' still running?");
  }
  running = false;
  document.body.classList.remove("busy");
  if (again) { again = false; request(); }
}

// --- what the static page carries ---

function unpack(text) {
  const bytes = Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
  return [...new Float32Array(bytes.buffer)].map((v) => (Number.isNaN(v) ? null : v));
}

function opened(packed) {
  if (packed.open) return packed;
  packed.open = true;
  if (packed.margin) packed.margin = unpack(packed.margin);
  for (const panel of packed.logics) for (const k of ["loss", "by_x", "by_y"]) if (panel[k]) panel[k] = unpack(panel[k]);
  return packed;
}

function look() {
  const replies = DATA.examples[state.example].replies;
  const first = opened(replies[0]);
  const own = opened(replies[Number($("hardness").value)]);
  const hard = Object.fromEntries(own.logics.map((panel) => [panel.logic, panel]));
  const logics = first.logics.map((panel) => (panel.has_hardness ? hard[panel.logic] : panel));
  const reply = { ...first, logics, marker: [...state.marker], epsilon: Number($("epsilon").value) };
  accept(approximate(reply));
}

const TOLERANCE = 1e-6; // grids are in single precision
// Bilinear between the computed points; the worst point is sought among 25 x 25 of the square.
function approximate(reply) {
  const n = reply.fine;
  const margin = (x, y) => interpolate(reply.margin, n, reply.ends, x, y);
  const square = mesh(reply);
  const judged = square.map(([x, y]) => margin(x, y));
  const logics = reply.logics.map((panel) => {
    if (panel.error) return panel;
    const loss = (x, y) => interpolate(panel.loss, n, reply.ends, x, y);
    const [x, y] = reply.marker;
    const h = (reply.ends[1] - reply.ends[0]) / (n - 1) / 2;
    let worst = 0;
    const values = square.map(([a, b]) => loss(a, b));
    const most = Math.max(...values.filter((v) => v !== null));
    const far = (k) => (values[k] !== null && values[k] >= most - 1e-6 ? Math.max(...square[k].map((v, i) => Math.abs(v - reply.marker[i]))) : Infinity);
    values.forEach((_, k) => { if (far(k) < far(worst)) worst = k; });
    const slope = (f, g) => (f === null || g === null ? null : (f - g) / (2 * h));
    return {
      ...panel,
      at: { loss: loss(x, y), value: undefined, gradient: [slope(loss(x + h, y), loss(x - h, y)), slope(loss(x, y + h), loss(x, y - h))] },
      worst: { loss: values[worst], point: square[worst], violated: judged[worst] < -TOLERANCE },
    };
  });
  return { ...reply, logics, holds: margin(...reply.marker) >= -TOLERANCE, square_violated: judged.some((m) => m < -TOLERANCE), approximate: true };
}

function mesh(reply) {
  const points = [];
  for (let j = 0; j < 25; j++) for (let i = 0; i < 25; i++) {
    points.push([reply.marker[0] + reply.epsilon * (i / 12 - 1), reply.marker[1] + reply.epsilon * (j / 12 - 1)]);
  }
  return points;
}

function interpolate(grid, n, [low, high], x, y) {
  const place = (v) => Math.min(Math.max((v - low) / (high - low), 0), 1) * (n - 1);
  const [u, v] = [place(x), place(y)];
  const [i, j] = [Math.min(Math.floor(u), n - 2), Math.min(Math.floor(v), n - 2)];
  const [a, b] = [u - i, v - j];
  const corners = [grid[j * n + i], grid[j * n + i + 1], grid[(j + 1) * n + i], grid[(j + 1) * n + i + 1]];
  if (corners.some((c) => c === null)) return null;
  return (1 - b) * ((1 - a) * corners[0] + a * corners[1]) + b * ((1 - a) * corners[2] + a * corners[3]);
}

// --- answers ---

function accept(reply) {
  state.reply = reply;
  document.body.classList.remove("outdated");
  // The outputs that are chosen now, not those that were asked for: the choice may have moved on.
  fillAxes(reply.outputs, [Number($("axis-x").value), Number($("axis-y").value)]);
  showParameters(reply.parameters);
  $("labels-field").hidden = !reply.uses_labels;
  const [x, y] = reply.marker.map((v) => v.toFixed(2));
  $("status").textContent = `Marker at y[${reply.axes[0]}] = ${x}, y[${reply.axes[1]}] = ${y}: ` +
    `${reply.holds ? "satisfied" : "violated"}. The square ${reply.square_violated ? "holds a violation" : "holds no violation that was found"}.`;
  draw(reply);
}

// The pictures and verdicts stay, dimmed, until there is another answer.
function outdate(why) {
  document.body.classList.add("outdated");
  $("status").textContent = why;
}

function clearError() {
  $("error").hidden = true;
  $("text").removeAttribute("aria-invalid");
  if ($("backdrop").querySelector("mark")) $("backdrop").textContent = $("text").value;
}

function showError(error) {
  const box = $("error");
  const line = document.createElement("strong");
  line.textContent = (error.line ? `Line ${error.line}, column ${error.column}: ` : "") + `${error.what}.`;
  const rest = document.createElement("span");
  rest.textContent = `Expected ${error.expected}, found ${error.found}. Fix: ${error.fix}.`;
  box.replaceChildren(line, rest);
  box.hidden = false;
  $("text").setAttribute("aria-invalid", "true");
  outdate("The pictures are of the last formula that could be read.");
  if (error.line) markPlace(error.line, error.column);
}

// The place is marked behind the text: the word that starts there, or the character.
function markPlace(line, column) {
  const text = $("text").value;
  const lines = text.split("\n");
  const start = lines.slice(0, line - 1).reduce((n, l) => n + l.length + 1, 0) + column - 1;
  const word = /^(\w+|[^\w\s])/.exec(text.slice(start));
  const end = start + Math.max(word ? word[0].length : 1, 1);
  const mark = document.createElement("mark");
  mark.textContent = text.slice(start, end).replace("\n", " ") || " ";
  $("backdrop").replaceChildren(text.slice(0, start), mark, text.slice(Math.min(end, text.length)));
}
