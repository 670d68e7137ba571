// Pictures: one canvas a logic, the same overlay on each.

const VIRIDIS = ["#440154", "#472d7b", "#3b528b", "#2c728e", "#21918c", "#28ae80", "#5ec962", "#addc30", "#fde725"]
  .map((c) => [1, 3, 5].map((k) => parseInt(c.slice(k, k + 2), 16)));
const GRADIENT = `linear-gradient(90deg, ${VIRIDIS.map((c) => `rgb(${c})`).join(", ")})`;
const STEP = 0.1; // of an arrow key; with Shift a tenth of it

function colour(t) {
  const at = Math.min(Math.max(t, 0), 1) * (VIRIDIS.length - 1);
  const k = Math.min(Math.floor(at), VIRIDIS.length - 2);
  return VIRIDIS[k].map((c, i) => c + (at - k) * (VIRIDIS[k + 1][i] - c));
}

function written(value, digits = 3) {
  if (value === undefined) return "–";
  if (value === null) return "infinite";
  return Math.abs(value) < 5e-7 ? "0" : String(Number(value.toPrecision(digits)));
}

function draw(reply) {
  const box = $("panels");
  const overlay = boundary(reply, 520);
  for (const panel of reply.logics) {
    let card = box.querySelector(`[data-logic="${panel.logic}"]`);
    if (!card) { card = makeCard(panel); box.append(card); }
    fillCard(card, panel, reply, overlay);
  }
  document.documentElement.dataset.drawn = String(Number(document.documentElement.dataset.drawn || 0) + 1);
}

function makeCard(panel) {
  const card = document.createElement("article");
  card.dataset.logic = panel.logic;
  card.innerHTML = '<h2><span class="name"></span><small class="note"></small></h2><canvas tabindex="0" role="img"></canvas>' +
    '<div class="scale"><span class="low"></span><i></i><span class="high"></span></div><dl></dl><p class="verdict"></p>';
  card.querySelector(".scale i").style.background = GRADIENT;
  const canvas = card.querySelector("canvas");
  canvas.addEventListener("click", (event) => {
    const frame = canvas.getBoundingClientRect();
    const [low, high] = state.reply.ends;
    const at = (share) => low + (high - low) * Math.min(Math.max(share, 0), 1);
    move([at((event.clientX - frame.left) / frame.width), at(1 - (event.clientY - frame.top) / frame.height)]);
  });
  canvas.addEventListener("keydown", (event) => {
    const step = { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key];
    if (!step) return;
    event.preventDefault();
    const size = STEP * (event.shiftKey ? 0.1 : 1);
    const [low, high] = state.reply.ends;
    move(state.marker.map((v, k) => Math.min(Math.max(v + size * step[k], low), high)));
  });
  return card;
}

function move(point) {
  state.marker = point.map((v) => Math.round(v * 1000) / 1000);
  ask(0);
}

function fillCard(card, panel, reply, overlay) {
  card.querySelector(".name").textContent = panel.name;
  const canvas = card.querySelector("canvas");
  const facts = card.querySelector("dl");
  const verdict = card.querySelector(".verdict");
  card.querySelector(".note").textContent = panel.error ? "" : panel.has_hardness ? "moves with hardness" : "no hardness";
  canvas.hidden = card.querySelector(".scale").hidden = facts.hidden = Boolean(panel.error);
  if (panel.error) { verdict.textContent = panel.error; verdict.className = "verdict"; return; }
  const finite = panel.loss.filter((v) => v !== null);
  const [low, high] = [Math.min(...finite), Math.max(...finite)];
  card.querySelector(".low").textContent = written(low);
  card.querySelector(".high").textContent = high === low ? "flat: no gradient anywhere" : `${written(high)} loss`;
  paint(canvas, panel, reply, overlay, low, high);
  const about = reply.approximate ? "≈ " : "";
  const gradient = panel.at.gradient.map((v) => written(v, 2)).join(", ");
  const lines = [["loss at the marker", about + written(panel.at.loss)]];
  if (panel.at.value !== undefined) lines.push(["value", written(panel.at.value)]);
  lines.push(["gradient", `${about}(${gradient})`]);
  lines.push(["slack", panel.slack ? `hard in [soft − ${written(panel.slack[0])}, soft + ${written(panel.slack[1])}]` : "no bound"]);
  facts.replaceChildren(...lines.flatMap(([term, text]) => {
    const [dt, dd] = [document.createElement("dt"), document.createElement("dd")];
    dt.textContent = term;
    dd.textContent = text;
    return [dt, dd];
  }));
  judge(verdict, panel, reply);
  canvas.setAttribute("aria-label", `${panel.name}: loss from ${written(low)} to ${written(high)}; ` +
    `${written(panel.at.loss)} at the marker. ${verdict.textContent}`);
}

// Does the point that maximises this loss in the square violate the formula?
function judge(element, panel, reply) {
  const place = panel.worst.point.map((v) => v.toFixed(2)).join(", ");
  element.className = "verdict";
  if (panel.worst.violated) {
    element.textContent = `worst in the square at (${place}): a violation`;
    element.classList.add("found");
  } else if (reply.square_violated) {
    element.textContent = `worst in the square at (${place}) is satisfied: misses the violation`;
    element.classList.add("missed");
  } else {
    element.textContent = `worst in the square at (${place}): satisfied`;
  }
}

// --- the overlay: hatching where violated, a line where the margin changes sign ---

function boundary(reply, size) {
  const canvas = Object.assign(document.createElement("canvas"), { width: size, height: size });
  const context = canvas.getContext("2d");
  const image = context.createImageData(size, size);
  const [low, high] = reply.ends;
  const violated = new Uint8Array(size * size);
  for (let j = 0; j < size; j++) for (let i = 0; i < size; i++) {
    const x = low + (high - low) * (i + 0.5) / size;
    const y = high - (high - low) * (j + 0.5) / size;
    const m = interpolate(reply.margin, reply.fine, reply.ends, x, y);
    violated[j * size + i] = m !== null && m < -1e-6 ? 1 : 0;
  }
  for (let j = 0; j < size; j++) for (let i = 0; i < size; i++) {
    const k = j * size + i;
    const edge = near(violated, size, i, j, 1);
    const halo = !edge && near(violated, size, i, j, 3);
    const hatch = violated[k] && (i + j) % 16 < 2;
    const [shade, alpha] = edge ? [20, 255] : halo ? [255, 190] : hatch ? [255, 95] : [0, 0];
    image.data.set([shade, shade, shade, alpha], 4 * k);
  }
  context.putImageData(image, 0, 0);
  return canvas;
}

function near(mask, size, i, j, reach) {
  const own = mask[j * size + i];
  for (const [a, b] of [[reach, 0], [-reach, 0], [0, reach], [0, -reach]]) {
    const [x, y] = [i + a, j + b];
    if (x >= 0 && y >= 0 && x < size && y < size && mask[y * size + x] !== own) return true;
  }
  return false;
}

// --- one picture ---

function paint(canvas, panel, reply, overlay, low, high) {
  const size = 520;
  if (canvas.width !== size) canvas.width = canvas.height = size;
  const context = canvas.getContext("2d");
  const n = reply.fine;
  const small = Object.assign(document.createElement("canvas"), { width: n, height: n });
  const pixels = small.getContext("2d").createImageData(n, n);
  const span = high - low || 1;
  for (let j = 0; j < n; j++) for (let i = 0; i < n; i++) {
    const v = panel.loss[(n - 1 - j) * n + i];
    const c = v === null ? [200, 200, 200] : high === low ? VIRIDIS[2] : colour((v - low) / span);
    pixels.data.set([...c, 255], 4 * (j * n + i));
  }
  small.getContext("2d").putImageData(pixels, 0, 0);
  context.imageSmoothingEnabled = true;
  context.imageSmoothingQuality = "high";
  // Grid points lie on the edges of the picture, pixels in their middles: half a pixel is cut off.
  context.drawImage(small, 0.5, 0.5, n - 1, n - 1, 0, 0, size, size);
  context.drawImage(overlay, 0, 0);
  const [from, to] = reply.ends;
  const at = ([x, y]) => [(x - from) / (to - from) * size, (1 - (y - from) / (to - from)) * size];
  arrows(context, panel, reply, at, size);
  marks(context, panel, reply, at, size);
  labels(context, reply, size);
}

function arrows(context, panel, reply, at, size) {
  const n = reply.coarse;
  const step = size / n;
  const norms = panel.by_x.map((v, k) => Math.hypot(v ?? 0, panel.by_y[k] ?? 0));
  const most = Math.max(...norms);
  for (let k = 0; k < n * n; k++) {
    const x = (k % n + 0.5) * step;
    const y = size - (Math.floor(k / n) + 0.5) * step;
    if (!(norms[k] > 1e-9 * most) || most < 1e-12) { dot(context, x, y, 1.8); continue; }
    const length = step * 0.84 * norms[k] / most;
    // Downhill; up on the screen is down in its coordinates.
    const [dx, dy] = [-panel.by_x[k] / norms[k], panel.by_y[k] / norms[k]];
    arrow(context, x - dx * length / 2, y - dy * length / 2, dx, dy, length);
  }
}

function dot(context, x, y, radius) {
  context.beginPath();
  context.arc(x, y, radius, 0, 2 * Math.PI);
  context.fillStyle = "rgba(255,255,255,.85)";
  context.fill();
}

function arrow(context, x, y, dx, dy, length) {
  const [tipX, tipY] = [x + dx * length, y + dy * length];
  const head = Math.min(9, length * 0.5);
  context.beginPath();
  context.moveTo(x, y);
  context.lineTo(tipX, tipY);
  context.moveTo(tipX - head * (dx - 0.55 * dy), tipY - head * (dy + 0.55 * dx));
  context.lineTo(tipX, tipY);
  context.lineTo(tipX - head * (dx + 0.55 * dy), tipY - head * (dy - 0.55 * dx));
  context.lineJoin = context.lineCap = "round";
  context.strokeStyle = "rgba(15,23,42,.55)";
  context.lineWidth = 4.2;
  context.stroke();
  context.strokeStyle = "#fff";
  context.lineWidth = 2;
  context.stroke();
}

function marks(context, panel, reply, at, size) {
  const [from, to] = reply.ends;
  const [x, y] = at(reply.marker);
  const half = reply.epsilon / (to - from) * size;
  context.lineWidth = 6;
  context.strokeStyle = "rgba(255,255,255,.85)";
  context.strokeRect(x - half, y - half, 2 * half, 2 * half);
  context.lineWidth = 2.5;
  context.strokeStyle = "#111827";
  context.strokeRect(x - half, y - half, 2 * half, 2 * half);
  context.beginPath();
  context.arc(x, y, 7, 0, 2 * Math.PI);
  context.fillStyle = "#fff";
  context.fill();
  context.stroke();
  const [u, v] = at(panel.worst.point);
  context.beginPath();
  for (const side of [-1, 1]) { context.moveTo(u - 9, v - 9 * side); context.lineTo(u + 9, v + 9 * side); }
  context.lineWidth = 8;
  context.strokeStyle = "#fff";
  context.stroke();
  context.lineWidth = 4;
  context.strokeStyle = "#dc2626";
  context.stroke();
}

function labels(context, reply, size) {
  context.font = "600 20px system-ui, sans-serif";
  context.lineWidth = 5;
  context.strokeStyle = "rgba(255,255,255,.9)";
  context.fillStyle = "#111827";
  const write = (text, x, y, align) => {
    context.textAlign = align;
    context.strokeText(text, x, y);
    context.fillText(text, x, y);
  };
  const [low, high] = reply.ends;
  write(`y[${reply.axes[0]}] →`, size - 8, size - 10, "right");
  write(`↑ y[${reply.axes[1]}]`, 8, 24, "left");
  write(String(low), 8, size - 10, "left");
  write(String(high), size - 8, 24, "right");
}

setUp();
