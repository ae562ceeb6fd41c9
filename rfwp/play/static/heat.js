// Heat maps on canvas: blue is negative, orange positive, one scale for all steps of a matrix.

const dark = matchMedia("(prefers-color-scheme: dark)");

const PALETTES = {
  light: { zero: [250, 249, 246], plus: [196, 82, 10], minus: [25, 91, 168], ink: "#1c2026", dim: "#5b6370", mark: "#1c2026", ground: "#ffffff" },
  dark: { zero: [33, 37, 45], plus: [255, 158, 87], minus: [98, 172, 255], ink: "#e8eaee", dim: "#a3abb8", mark: "#ffffff", ground: "#171a20" },
};

export const palette = () => (dark.matches ? PALETTES.dark : PALETTES.light);

export const onSchemeChange = (redraw) => dark.addEventListener("change", redraw);

// a value's colour as three bytes of `bytes`; a root makes small weights visible
function mix(value, scale, colours, bytes, place) {
  const size = Math.sqrt(Math.min(1, Math.abs(value) / scale)) || 0;
  const end = value < 0 ? colours.minus : colours.plus;
  for (let i = 0; i < 3; i++) bytes[place + i] = colours.zero[i] + (end[i] - colours.zero[i]) * size;
}

// values (rows × cols, from `offset` on) as cells of a box
export function drawGrid(context, values, offset, rows, cols, box, scale) {
  const colours = palette();
  const [w, h] = [box.w / cols, box.h / rows];
  const rgb = new Uint8ClampedArray(3);
  for (let r = 0; r < rows; r++) {
    for (let c = 0; c < cols; c++) {
      mix(values[offset + r * cols + c], scale, colours, rgb, 0);
      context.fillStyle = `rgb(${rgb[0]},${rgb[1]},${rgb[2]})`;
      // whole pixels, so that no seams show
      const [x, y] = [Math.round(box.x + c * w), Math.round(box.y + r * h)];
      context.fillRect(x, y, Math.round(box.x + (c + 1) * w) - x, Math.round(box.y + (r + 1) * h) - y);
    }
  }
  context.strokeStyle = colours.dim;
  context.lineWidth = 1;
  context.strokeRect(box.x - 0.5, box.y - 0.5, box.w + 1, box.h + 1);
}

// one pixel a value, stretched by the browser: much quicker than cells
export function drawPixels(canvas, values, offset, rows, cols, scale) {
  const colours = palette();
  if (canvas.width !== cols || canvas.height !== rows) Object.assign(canvas, { width: cols, height: rows });
  const context = canvas.getContext("2d");
  const image = context.createImageData(cols, rows);
  for (let i = 0; i < rows * cols; i++) {
    mix(values[offset + i], scale, colours, image.data, 4 * i);
    image.data[4 * i + 3] = 255;
  }
  context.putImageData(image, 0, 0);
}

// cells that this step changed for everyone to see: the larger of its changes
export function changedCells(write, offset, size, scale) {
  let largest = 0;
  for (let i = 0; i < size; i++) largest = Math.max(largest, Math.abs(write[offset + i]));
  const least = Math.max(0.25 * largest, 0.02 * scale);
  const cells = [];
  for (let i = 0; i < size; i++) if (Math.abs(write[offset + i]) >= least) cells.push(i);
  return cells;
}

export function markCells(context, cells, rows, cols, box) {
  const [w, h] = [box.w / cols, box.h / rows];
  context.strokeStyle = palette().mark;
  context.lineWidth = Math.max(1, Math.min(1.6, w / 8));
  for (const cell of cells) {
    context.strokeRect(box.x + (cell % cols) * w + 1, box.y + Math.floor(cell / cols) * h + 1, w - 2, h - 2);
  }
}

export function largest(values, offset = 0, size = values.length) {
  let most = 1e-6;
  for (let i = offset; i < offset + size; i++) most = Math.max(most, Math.abs(values[i]));
  return most;
}

// a canvas in CSS pixels, sharp on every screen
export function prepare(canvas, width, height) {
  const ratio = window.devicePixelRatio || 1;
  const [w, h] = [Math.round(width * ratio), Math.round(height * ratio)];
  if (canvas.width !== w || canvas.height !== h) {
    Object.assign(canvas, { width: w, height: h });
    canvas.style.aspectRatio = `${width} / ${height}`;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  return context;
}

// One head's matrix with the vectors around it: key above (where it writes), query below (where it reads), read at the right.
export const LARGE = { width: 264, height: 268 };

export function drawLarge(context, matrix, head, rows, cols, scale, at = { x: 0, y: 0 }) {
  const grid = { x: at.x + 46, y: at.y + 34, w: 176, h: 176 };
  const ink = palette().dim;
  context.font = "11px system-ui, sans-serif";
  context.fillStyle = ink;
  context.textBaseline = "middle";
  context.textAlign = "right";
  context.fillText("key", grid.x - 6, at.y + 19);
  context.fillText("query", grid.x - 6, grid.y + grid.h + 19);
  context.textAlign = "center";
  context.fillText("read", grid.x + grid.w + 19, at.y + 19);
  drawGrid(context, matrix.key, head * cols, 1, cols, { x: grid.x, y: at.y + 12, w: grid.w, h: 14 }, largest(matrix.key, head * cols, cols));
  const below = { x: grid.x, y: grid.y + grid.h + 12, w: grid.w, h: 14 };
  drawGrid(context, matrix.query, head * cols, 1, cols, below, largest(matrix.query, head * cols, cols));
  const right = { x: grid.x + grid.w + 12, y: grid.y, w: 14, h: grid.h };
  drawGrid(context, matrix.read, head * rows, rows, 1, right, largest(matrix.read, head * rows, rows));
  const size = rows * cols;
  drawGrid(context, matrix.weights, head * size, rows, cols, grid, scale);
  markCells(context, changedCells(matrix.write, head * size, size, scale), rows, cols, grid);
}
