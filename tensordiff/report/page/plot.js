// The plot: error along the run on a log axis, colour and marker by component. Drag to zoom, double-click to see all again.
const view = { from: 0, to: Math.max(1, count - 1), drag: null, points: [], metric: "mse", scenarios: new Set(["plain"]) };
const MARKERS = {
  attention: (c, x, y, r) => c.arc(x, y, r, 0, 7),
  mlp: (c, x, y, r) => c.rect(x - r, y - r, 2 * r, 2 * r),
  norm: (c, x, y, r) => polygon(c, [[x, y - r * 1.2], [x + r * 1.1, y + r], [x - r * 1.1, y + r]]),
  embedding: (c, x, y, r) => polygon(c, [[x, y - r * 1.3], [x + r * 1.3, y], [x, y + r * 1.3], [x - r * 1.3, y]]),
  head: (c, x, y, r) => polygon(c, [[x, y + r * 1.2], [x + r * 1.1, y - r], [x - r * 1.1, y - r]]),
  block: (c, x, y, r) => { c.rect(x - r * 1.3, y - r * 0.45, r * 2.6, r * 0.9); c.rect(x - r * 0.45, y - r * 1.3, r * 0.9, r * 2.6); },
  other: (c, x, y, r) => polygon(c, [[x - r, y - r], [x, y - r * 0.4], [x + r, y - r], [x + r * 0.4, y], [x + r, y + r], [x, y + r * 0.4], [x - r, y + r], [x - r * 0.4, y]]),
};

function polygon(c, corners) {
  corners.forEach(([x, y], k) => (k ? c.lineTo(x, y) : c.moveTo(x, y)));
  c.closePath();
}

const colour = (name) => getComputedStyle(document.documentElement).getPropertyValue("--" + name).trim();

function series() {
  const found = [];
  if (view.scenarios.has("plain")) found.push([rows[view.metric], false]);
  if (rows.injected && view.scenarios.has("injected")) found.push([view.metric === "mse" ? rows.injected_mse : rows.injected, true]);
  return found;
}

function ends(columns) {
  let low = Infinity, high = -Infinity;
  for (const [column] of columns) for (let k = 0; k < count; k++) {
    const value = column[k];
    if (value !== null && !isOdd(value) && value > 0) { low = Math.min(low, value); high = Math.max(high, value); }
  }
  if (low > high) return [-8, 0];
  return [Math.floor(Math.log10(low)) - 1, Math.ceil(Math.log10(high)) + 1];
}

function drawPlot() {
  const canvas = byId("plot");
  const wide = canvas.clientWidth, tall = canvas.clientHeight, dense = window.devicePixelRatio || 1;
  if (!wide) return;
  canvas.width = wide * dense;
  canvas.height = tall * dense;
  const c = canvas.getContext("2d");
  c.scale(dense, dense);
  const left = 52, right = wide - 12, top = 12, bottom = tall - 26;
  const columns = series();
  const [low, high] = ends(columns);
  const xOf = (k) => left + 8 + ((k - view.from) / Math.max(1, view.to - view.from)) * (right - left - 16);
  const yOf = (value) => isOdd(value) ? top + 4 : value === 0 ? bottom - 4 : bottom - 18 - ((Math.log10(value) - low) / (high - low)) * (bottom - top - 36);
  axes(c, { left, right, top, bottom, low, high, yOf, xOf });
  const colours = COMPONENTS.map(colour);
  view.points = [];
  const ring = colour("card");
  const crowded = count > 2000 ? 2.4 : 4;
  for (const [column, hollow] of columns) for (let k = view.from; k <= view.to; k++) {
    const value = column[k];
    if (value === null || (rows.input[k] && k !== state.picked)) continue;
    const x = xOf(k), y = yOf(value), part = rows.component[k];
    c.globalAlpha = state.dim[k] ? 0.12 : 0.9;
    c.beginPath();
    MARKERS[COMPONENTS[part]](c, x, y, crowded);
    if (hollow) { c.strokeStyle = colours[part]; c.lineWidth = 1.4; c.stroke(); }
    else { c.fillStyle = colours[part]; c.fill(); if (crowded > 3) { c.strokeStyle = ring; c.lineWidth = 0.5; c.stroke(); } }
    if (!state.dim[k]) view.points.push([x, y, k, hollow]);
    if (k === state.picked || k === data.culprit) halo(c, x, y, k === data.culprit ? colour("diverges") : colour("accent"));
  }
  c.globalAlpha = 1;
  if (data.culprit !== null && view.scenarios.has("plain")) caption(c, view.points.find((point) => point[2] === data.culprit && !point[3]), right);
  if (view.drag) { c.fillStyle = colour("accent"); c.globalAlpha = 0.15; c.fillRect(Math.min(...view.drag), top, Math.abs(view.drag[1] - view.drag[0]), bottom - top); }
}

function halo(c, x, y, ink) {
  c.globalAlpha = 1;
  c.beginPath();
  c.arc(x, y, 9, 0, 7);
  c.strokeStyle = ink;
  c.lineWidth = 2;
  c.stroke();
}

function caption(c, point, right) {
  if (!point) return;
  const [x, y, k] = point;
  const text = rows.name[k].length > 60 ? "…" + rows.name[k].slice(-60) : rows.name[k];
  c.font = "600 12px system-ui, sans-serif";
  c.fillStyle = colour("diverges");
  const fits = x + 16 + c.measureText(text).width < right;
  c.textAlign = fits ? "left" : "right";
  c.fillText(text, fits ? x + 10 : x - 10, y - 14);
}

function axes(c, { left, right, top, bottom, low, high, yOf, xOf }) {
  c.font = "11px system-ui, sans-serif";
  c.textBaseline = "middle";
  c.strokeStyle = colour("line");
  c.fillStyle = colour("soft");
  c.textAlign = "right";
  const step = Math.max(1, Math.ceil((high - low) / 8));
  for (let power = low; power <= high; power += step) line(c, left, right, yOf(10 ** power), "1e" + power);
  line(c, left, right, bottom - 4, "0");
  line(c, left, right, top + 4, "nan, inf");
  c.textAlign = "center";
  const ticks = Math.min(10, view.to - view.from + 1);
  for (let t = 0; t < ticks; t++) {
    const k = Math.round(view.from + ((view.to - view.from) * t) / Math.max(1, ticks - 1));
    if (k < count) c.fillText(rows.index[k], xOf(k), bottom + 14);
  }
}

function line(c, left, right, y, text) {
  c.beginPath();
  c.moveTo(left, y);
  c.lineTo(right, y);
  c.lineWidth = 0.7;
  c.stroke();
  c.fillText(text, left - 6, y);
}

function nearest(event) {
  const box = byId("plot").getBoundingClientRect();
  const x = event.clientX - box.left, y = event.clientY - box.top;
  let best = null, reach = 220;
  for (const point of view.points) {
    const far = (point[0] - x) ** 2 + (point[1] - y) ** 2;
    if (far < reach) { reach = far; best = point; }
  }
  return best;
}

function hover(event) {
  const tip = byId("tip");
  const box = byId("plot").getBoundingClientRect();
  if (view.drag) { view.drag[1] = event.clientX - box.left; drawPlot(); return; }
  const point = nearest(event);
  tip.hidden = !point;
  if (!point) return;
  const [x, y, k, hollow] = point;
  const value = hollow ? (view.metric === "mse" ? rows.injected_mse : rows.injected)[k] : rows[view.metric][k];
  tip.textContent = `${GLYPHS[rows.verdict[k]]} #${rows.index[k]} ${rows.name[k]} · ${view.metric} ${show(value)}${hollow ? " with injection" : ""}`;
  tip.style.left = Math.min(x + 12, box.width - 320) + "px";
  tip.style.top = y + 12 + "px";
}

function release(event) {
  if (!view.drag) return;
  const [a, b] = [...view.drag].sort((p, q) => p - q);
  view.drag = null;
  const point = nearest(event);
  if (b - a > 8) zoom(a, b);
  else if (point) pick(point[2], true);
  drawPlot();
}

function zoom(a, b) {
  const left = 60, wide = byId("plot").clientWidth - 80, span = view.to - view.from;
  const from = Math.max(0, Math.floor(view.from + (span * (a - left)) / wide));
  const to = Math.min(count - 1, Math.ceil(view.from + (span * (b - left)) / wide));
  if (to > from) { view.from = from; view.to = to; }
}
