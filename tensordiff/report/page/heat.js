// The heatmap of a close-up: the largest error in each cell, on a log scale; what is not finite stands out by its own colour.
function heatmap(canvas, heat) {
  const tall = heat.cells.length, wide = heat.cells[0].length;
  canvas.width = wide;
  canvas.height = tall;
  canvas.style.height = Math.max(60, Math.min(300, tall * 14)) + "px";
  const finite = heat.cells.flat().filter((value) => !isOdd(value) && value > 0);
  const high = finite.length ? Math.log10(finite.reduce((a, b) => Math.max(a, b))) : 0;
  const low = finite.length ? Math.max(high - 8, Math.log10(finite.reduce((a, b) => Math.min(a, b)))) : -1;
  const c = canvas.getContext("2d");
  heat.cells.forEach((cells, y) => cells.forEach((value, x) => {
    c.fillStyle = shade(value, low, high);
    c.fillRect(x, y, 1, 1);
  }));
}

// Dark violet over orange to pale yellow, told apart without colour by lightness alone.
function shade(value, low, high) {
  if (isOdd(value)) return "#00c2d1";
  if (value === 0) return "#0b0b12";
  const t = Math.max(0, Math.min(1, high > low ? (Math.log10(value) - low) / (high - low) : 1));
  return `hsl(${270 + 145 * t} ${70 + 20 * t}% ${14 + 68 * t}%)`;
}

function heats() {
  for (const canvas of document.querySelectorAll("canvas.heat")) heatmap(canvas, data.heats[Number(canvas.dataset.heat)]);
}
