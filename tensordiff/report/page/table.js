// The table: however many rows there are, only those in sight are in the page.
const ROW = 27;
const COLUMNS = [
  ["verdict", "", 34, ""], ["index", "#", 62, "num"], ["name", "layer", 0, ""], ["shape", "shape", 120, ""], ["mse", "MSE", 88, "num"],
  ["rel_l2", "rel_l2", 88, "num"], ["max_abs", "max |Δ|", 88, "num"], ["injected", "injected", 88, "num"], ["golden", "golden×", 88, "num"], ["profile", "profile", 172, ""],
].filter(([name]) => rows[name]);

function head() {
  const group = byId("columns");
  const line = byId("headings");
  for (const [name, title, width, kind] of COLUMNS) {
    const column = make("col");
    if (width) column.style.width = width + "px";
    group.append(column);
    const cell = make("th", kind);
    cell.scope = "col";
    const button = make("button", "", title || "•");
    if (!title) button.setAttribute("aria-label", "verdict");
    if (name !== "profile") button.addEventListener("click", () => sortBy(name));
    cell.append(button);
    cell.dataset.name = name;
    line.append(cell);
  }
}

function sortBy(name) {
  state.down = state.sort === name ? !state.down : !["index", "name", "shape"].includes(name);
  state.sort = name;
  refresh();
}

function marks() {
  for (const cell of byId("headings").children) {
    const sorted = cell.dataset.name === state.sort;
    cell.setAttribute("aria-sort", sorted ? (state.down ? "descending" : "ascending") : "none");
    const button = cell.firstChild;
    button.textContent = button.textContent.replace(/ [▲▼]$/, "") + (sorted ? (state.down ? " ▼" : " ▲") : "");
  }
}

function rowOf(k) {
  const line = make("tr", k === state.picked ? "row picked" : "row");
  for (const [name, , , kind] of COLUMNS) {
    const value = rows[name][k];
    let cell;
    if (name === "verdict") {
      cell = make("td", VERDICTS[value], GLYPHS[value]);
      cell.title = VERDICTS[value];
    } else if (name === "index") cell = make("td", "num soft", value);
    else if (name === "golden") cell = make("td", "num", ratio(value));
    else if (name === "profile") cell = make("td", "spark", value);
    else if (kind === "num") cell = make("td", "num", show(value));
    else {
      cell = make("td", "", value);
      cell.title = value;
    }
    line.append(cell);
  }
  line.addEventListener("click", () => pick(k));
  return line;
}

function gap(height) {
  const line = make("tr");
  const cell = make("td", "gap");
  cell.colSpan = COLUMNS.length;
  cell.style.height = height + "px";
  line.append(cell);
  return line;
}

function draw() {
  const box = byId("scroll");
  const first = Math.max(0, Math.floor(box.scrollTop / ROW) - 8);
  const last = Math.min(state.shown.length, first + Math.ceil(box.clientHeight / ROW) + 18);
  const lines = [gap(first * ROW)];
  for (let at = first; at < last; at++) lines.push(rowOf(state.shown[at]));
  lines.push(gap((state.shown.length - last) * ROW));
  byId("body").replaceChildren(...lines);
}

function refresh() {
  select();
  marks();
  byId("scroll").scrollTop = 0;
  byId("shown").textContent = state.shown.length === count ? `${count} pairs` : `${state.shown.length} of ${count} pairs`;
  draw();
  drawPlot();
}

function pick(k, scroll) {
  state.picked = k;
  if (scroll) {
    const at = state.shown.indexOf(k);
    if (at >= 0) byId("scroll").scrollTop = Math.max(0, at * ROW - byId("scroll").clientHeight / 3);
  }
  draw();
  drawPlot();
  detail(k);
}

function detail(k) {
  const box = byId("detail");
  const verdict = make("span", "verdict " + VERDICTS[rows.verdict[k]], `${GLYPHS[rows.verdict[k]]} ${VERDICTS[rows.verdict[k]]} `);
  const lines = [
    ["reference", rows.reference[k]], ["candidate", rows.candidate[k]], ["types", rows.dtype[k]], ["paired by", rows.by[k]], ["views", rows.views[k]],
    ["with injection", rows.injected ? `rel_l2 ${show(rows.injected[k])}, MSE ${show(rows.injected_mse[k])}` : ""],
  ].filter(([, text]) => text);
  const table = make("table");
  for (const [name, text] of lines) {
    const line = make("tr");
    line.append(make("th", "", name), make("td", "", text));
    table.append(line);
  }
  const said = make("div");
  said.append(make("strong", "mono", rows.name[k]), " ", verdict, rows.why[k]);
  box.replaceChildren(said, table);
}

function keys(event) {
  const step = { ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20 }[event.key];
  if (!step || !state.shown.length) return;
  event.preventDefault();
  const at = state.shown.indexOf(state.picked);
  pick(state.shown[Math.max(0, Math.min(state.shown.length - 1, at + step))], true);
}
