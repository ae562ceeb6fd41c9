// A step as a picture: the text around it, what was said, and the chosen head's matrices of every model.

import { drawLarge, LARGE, palette } from "./heat.js";

const [EDGE, RATIO, TOP] = [24, 2, 118];

const GAME = 210;

// `screen` is the picture of a game, which stands in the place of a text
export function drawPicture(panes, titles, screen) {
  const top = TOP + (screen ? GAME : 0);
  const most = Math.max(1, ...panes.map((pane) => pane.data.matrices.length));
  const width = Math.max(640, 2 * EDGE + most * LARGE.width);
  const height = top + panes.length * (LARGE.height + 52) + EDGE;
  const canvas = document.createElement("canvas");
  Object.assign(canvas, { width: width * RATIO, height: height * RATIO });
  const context = canvas.getContext("2d");
  context.scale(RATIO, RATIO);
  const { ink, dim, ground } = palette();
  context.fillStyle = ground;
  context.fillRect(0, 0, width, height);
  const write = (text, x, y, font, colour) => {
    Object.assign(context, { font, fillStyle: colour, textAlign: "left", textBaseline: "alphabetic" });
    context.fillText(text, x, y, width - x - EDGE);
  };
  write(titles.step, EDGE, 40, "600 20px system-ui, sans-serif", ink);
  write(titles.before, EDGE, 70, "14px ui-monospace, monospace", dim);
  write(titles.now, EDGE, 94, "600 15px ui-monospace, monospace", ink);
  if (screen) {
    context.imageSmoothingEnabled = false;
    const ratio = Math.min((GAME - 10) / screen.naturalHeight, (width - 2 * EDGE) / screen.naturalWidth);
    context.drawImage(screen, EDGE, TOP - 10, screen.naturalWidth * ratio, screen.naturalHeight * ratio);
  }
  panes.forEach((pane, number) => {
    const y = top + number * (LARGE.height + 52);
    const { trace, data } = pane;
    const title = `${pane.model.name}: ${pane.verdict.textContent.replace(/\.$/, "")}; layer ${data.layer + 1}, head ${data.head + 1}`;
    write(title, EDGE, y + 20, "600 14px system-ui, sans-serif", ink);
    data.matrices.forEach((matrix, m) => {
      const { name, rows, cols } = trace.matrices[m];
      const x = EDGE + m * LARGE.width;
      write(matrix.beta ? `${name}, β ${matrix.beta[data.head].toFixed(2)}` : name, x + 46, y + 44, "13px system-ui, sans-serif", dim);
      drawLarge(context, matrix, data.head, rows, cols, trace.scales[data.layer][m], { x, y: y + 44 });
    });
  });
  return canvas;
}

export function save(name, address) {
  const link = document.createElement("a");
  Object.assign(link, { href: address, download: name });
  document.body.append(link);
  link.click();
  link.remove();
}
