// Wiring, and the first drawing.
function chips() {
  byId("verdicts").append(...VERDICTS.map((name, k) => {
    const total = rows.verdict.reduce((sum, value) => sum + (value === k), 0);
    const chip = make("button", "chip " + name, `${GLYPHS[k]} ${total} ${name}`);
    chip.setAttribute("aria-pressed", "true");
    chip.addEventListener("click", () => {
      const on = !state.verdicts.delete(k);
      if (on) state.verdicts.add(k);
      chip.setAttribute("aria-pressed", String(on));
      refresh();
    });
    return chip;
  }));
}

function legend() {
  const used = new Set(rows.component);
  byId("legend").append(...COMPONENTS.filter((_, k) => used.has(k)).map((name) => {
    const item = make("label");
    const canvas = make("canvas");
    canvas.width = canvas.height = 14;
    const c = canvas.getContext("2d");
    c.fillStyle = colour(name);
    c.beginPath();
    MARKERS[name](c, 7, 7, 4.5);
    c.fill();
    item.append(canvas, name);
    return item;
  }));
}

function wire() {
  byId("filter").addEventListener("input", (event) => { state.filter = event.target.value; refresh(); });
  byId("outputs").addEventListener("change", (event) => { state.outputs = event.target.checked; refresh(); });
  byId("metric").addEventListener("change", (event) => { view.metric = event.target.value; drawPlot(); });
  for (const box of document.querySelectorAll("[data-scenario]")) {
    if (box.checked) view.scenarios.add(box.dataset.scenario);
    box.addEventListener("change", () => { view.scenarios[box.checked ? "add" : "delete"](box.dataset.scenario); drawPlot(); });
  }
  byId("scroll").addEventListener("scroll", () => requestAnimationFrame(draw), { passive: true });
  byId("scroll").addEventListener("keydown", keys);
  const plot = byId("plot");
  plot.addEventListener("pointerdown", (event) => { const x = event.clientX - plot.getBoundingClientRect().left; view.drag = [x, x]; });
  plot.addEventListener("pointermove", hover);
  plot.addEventListener("pointerup", release);
  plot.addEventListener("pointerleave", () => { view.drag = null; byId("tip").hidden = true; drawPlot(); });
  plot.addEventListener("dblclick", () => { view.from = 0; view.to = Math.max(1, count - 1); drawPlot(); });
  window.addEventListener("resize", () => { draw(); drawPlot(); });
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => { byId("legend").replaceChildren(); legend(); drawPlot(); });
}

chips();
legend();
head();
wire();
heats();
refresh();
if (data.culprit !== null) pick(data.culprit, true);
document.documentElement.dataset.ready = String(Math.round(performance.now()));
