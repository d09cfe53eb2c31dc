// What the page holds: the rows, column by column, as the report wrote them. Every text from outside reaches the page by
// textContent or fillText, never as markup.
"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const rows = data.rows;
const count = rows.index.length;
const VERDICTS = ["agrees", "drifts", "diverges", "unknown"];
const GLYPHS = ["✓", "~", "✗", "?"];
const COMPONENTS = ["attention", "mlp", "norm", "embedding", "head", "block", "other"];

const state = { filter: "", verdicts: new Set([0, 1, 2, 3]), outputs: false, sort: "index", down: false, picked: -1, shown: [], dim: new Uint8Array(count) };

const byId = (id) => document.getElementById(id);
const make = (tag, className, text) => {
  const element = document.createElement(tag);
  if (className) element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
};
const isOdd = (value) => typeof value === "string";
const show = (value) => (value === null ? "–" : isOdd(value) ? value : value === 0 ? "0" : value.toExponential(2));
const ratio = (value) => (value === null || isOdd(value) || value >= 1e4 ? show(value) : Number(value.toPrecision(3)).toString());
// NaN above infinity above numbers; what was not measured at the end.
const rank = (value) => (value === null ? -2 : value === "nan" ? Infinity : value === "inf" ? Number.MAX_VALUE : value === "-inf" ? -1 : value);

function select() {
  let test = () => true;
  if (state.filter) {
    const needle = state.filter.toLowerCase();
    test = (k) => rows.name[k].toLowerCase().includes(needle) || rows.why[k].toLowerCase().includes(needle) || rows.candidate[k].toLowerCase().includes(needle);
  }
  const shown = [];
  for (let k = 0; k < count; k++) {
    const kept = state.verdicts.has(rows.verdict[k]) && !(state.outputs && rows.input[k]) && test(k);
    state.dim[k] = kept ? 0 : 1;
    if (kept) shown.push(k);
  }
  const column = rows[state.sort];
  const order = state.sort === "verdict" ? (k) => [0, 2, 3, 1][column[k]] : (k) => column[k];
  const texts = state.sort === "name" || state.sort === "shape";
  const sign = state.down ? -1 : 1;
  const compare = texts ? (a, b) => column[a].localeCompare(column[b], undefined, { numeric: true }) : (a, b) => Math.sign(rank(order(a)) - rank(order(b)) || 0);
  if (state.sort !== "index" || state.down) shown.sort((a, b) => sign * compare(a, b) || a - b);
  state.shown = shown;
}
