// One model: what it expects, how much it writes over time, its fast matrices, and where a read came from.

import { bytes } from "./api.js";
import { changedCells, drawLarge, drawPixels, LARGE, largest, palette, prepare } from "./heat.js";
import { describe, make, percent } from "./page.js";

function picture(kind) {
  const canvas = make("canvas", kind);
  canvas.setAttribute("role", "img");
  return canvas;
}

const height = (rows) => `${Math.max(40, Math.min(96, rows * 9))}px`;

// values by step and row, laid out row by row
const turned = (steps, rows, value) => Float32Array.from({ length: steps * rows }, (_, i) => value(i % steps, Math.floor(i / steps)));

const ROLES = {
  W: "the memory",
  R: "the recurrent memory, read with the last output",
  F: "a memory that holds programs, which write into W",
  z: "sums up all keys, to normalise what is read",
};
const role = (name) => ROLES[name] ?? ROLES[name[0]] ?? "a fast matrix";

function writing(beta) {
  if (beta === undefined) return "adds to what its key holds.";
  return `${beta < 0.15 ? "hardly writes now" : beta < 0.6 ? "writes a little now" : "writes strongly now"}: β\u00a0${beta.toFixed(2)}.`;
}

const words = (answer) => (answer === "_" ? "nothing (_)" : answer);

// what a model expects, in a sentence; `probability` is that of the right answer, if it is known
const SENTENCES = {
  task: ([said, p], right) => {
    const verdict = right === "" ? "nothing is asked here" : said === right ? "right" : `wrong, right is ${words(right)}`;
    return ["Says ", make("strong", right === "" ? "" : said === right ? "right" : "wrong", words(said)), `, ${percent(p)} sure: ${verdict}.`];
  },
  language: ([said, p], right) => ["Expects ", make("strong", "", said), ` next (${percent(p)})`, right === "" ? "." : `; what comes is ${right}.`],
  agent: ([likely, p], done) => ["Does ", make("strong", "", done), done === likely ? `, its first choice (${percent(p)}).` : `; ${likely} was likelier (${percent(p)}).`],
};

// `trace` may grow: a game's does
export class Pane {
  constructor(model, trace, before, difference, onSeek, onHead) {
    Object.assign(this, { model, trace, before, difference });
    this.written = trace.written.map((layer) => (typeof layer === "string" ? bytes(layer) : layer));
    this.element = make("article", "pane");
    this.element.setAttribute("aria-label", model.name);
    const [overview, matrices] = ["overview", "matrices"].map((kind) => make("div", kind));
    overview.append(this.makeTitle(), this.makeExpectations(), this.makeTimeline(onSeek));
    if (difference) overview.append(this.makeDifference());
    this.matrices = trace.matrices.map((matrix, number) => this.makeMatrix(matrix, (head) => onHead(head, number)));
    this.strengths = trace.strengths?.map((layer) => layer.map((betas) => betas && bytes(betas)));
    matrices.append(...this.matrices.map((parts) => parts.element));
    const legend =
      "Each square is a matrix of fast weights: orange is positive, blue negative. The key above it says which columns are written at this step (outlined: cells that changed), " +
      "the query below which are read, and “read” is what comes out.";
    this.element.append(overview, make("p", "explain", legend), matrices);
  }

  makeTitle() {
    const head = make("div", "pane-head");
    const title = make("h3", "", this.model.name);
    const rule = make("p", "equation", `${this.model.rule.replaceAll("beta", "β")}`);
    const fast = make("p", "equation", this.model.fast);
    const what = this.model.erases ? "It can overwrite what a key held." : "It only ever adds: nothing can be overwritten.";
    const flows = this.model.recurrent ? " Its last output flows into the next step." : "";
    head.append(title, make("p", "explain", `${what}${flows}`), rule, fast, make("p", "systematic", this.model.title));
    return head;
  }

  makeExpectations() {
    const figure = make("figure", ["language", "agent"].includes(this.trace.kind) ? "expectations words" : "expectations");
    this.verdict = make("figcaption");
    this.bars = make("ol", "bars");
    figure.append(this.verdict, this.bars);
    return figure;
  }

  makeTimeline(onSeek) {
    const figure = make("figure", "timeline");
    this.strip = picture("pixels");
    this.cursor = make("div", "cursor");
    const frame = make("div", "frame");
    frame.append(this.strip, this.cursor);
    frame.addEventListener("click", (event) => {
      const box = frame.getBoundingClientRect();
      onSeek(Math.floor(((event.clientX - box.left) / box.width) * this.trace.tokens.length));
    });
    const column = this.trace.kind === "agent" ? "step" : "token";
    figure.append(make("figcaption", "", `How much each head (row) writes at each ${column} (column): the stronger the colour, the more.`), frame);
    return figure;
  }

  makeDifference() {
    const figure = make("figure", "timeline");
    const canvas = picture("pixels");
    const frame = make("div", "frame");
    frame.append(canvas);
    figure.append(make("figcaption", "", "After your change: how far its answers (top row) and each layer's memory (rows below) are from before."), frame);
    this.drift = canvas;
    return figure;
  }

  makeMatrix(matrix, onHead) {
    const element = make("section", "matrix");
    const title = make("h4", "", `${matrix.name}`);
    const marked = make("span", "marked", "marked in the text");
    title.append(make("span", "", ` ${role(matrix.name)} `), marked);
    const large = picture("large");
    const heads = make("div", "heads");
    heads.setAttribute("role", "group");
    heads.setAttribute("aria-label", `Heads of ${matrix.name}`);
    const small = Array.from({ length: this.trace.heads }, (_, head) => {
      const button = make("button", "head");
      button.type = "button";
      const canvas = make("canvas");
      canvas.setAttribute("aria-hidden", "true");
      const bar = make("span", "beta");
      const label = make("span", "beta-label");
      bar.append(make("span", "beta-fill"));
      button.append(canvas, bar, label);
      button.addEventListener("click", () => onHead(head));
      return { button, canvas, fill: bar.firstChild, label };
    });
    heads.append(...small.map(({ button }) => button));
    const sources = make("div", "sources");
    const strip = picture("share-strip");
    const cause = make("p", "cause");
    sources.append(cause, strip);
    const body = make("div", "matrix-body");
    const side = make("div", "side");
    const now = make("p", "now-writes");
    side.append(now, make("p", "explain", matrix.beta ? "All heads; the bar is β, how strongly each one writes now:" : "All heads; each adds what it writes:"), heads, sources);
    body.append(large, side);
    element.append(title, body);
    return { element, large, small, strip, cause, marked, now };
  }

  // everything of one step; `data` is the server's, for the layer and head chosen; `marked`: the matrix that the text shows
  update(data, marked = -1) {
    const { t, layer, head } = data;
    this.data = data;
    this.showExpectations(data);
    this.showTimeline(t, layer);
    data.matrices.forEach((matrix, number) => this.showMatrix(this.matrices[number], this.trace.matrices[number], matrix, number, layer, head));
    this.matrices.forEach((parts, number) => (parts.marked.hidden = number !== marked));
  }

  showExpectations({ t, expected }) {
    const right = this.trace.truth[t];
    this.verdict.replaceChildren(...(SENTENCES[this.trace.kind] ?? SENTENCES.task)(expected[0], right));
    this.bars.replaceChildren(
      ...expected.map(([answer, probability]) => {
        const row = make("li", right !== "" && answer === right ? "is-right" : "");
        const bar = make("span", "bar-track");
        const fill = make("span", "bar-fill");
        fill.style.width = `${100 * probability}%`;
        bar.append(fill);
        row.append(make("span", "bar-name", answer), bar, make("span", "bar-value", percent(probability)));
        return row;
      }),
    );
  }

  showTimeline(t, layer) {
    const [steps, heads] = [this.trace.tokens.length, this.trace.heads];
    const state = `${layer} ${palette().ink} ${this.trace.first ?? 0} ${steps}`;
    if (this.shownLayer !== state) {
      this.shownLayer = state;
      const values = this.written[layer];
      drawPixels(this.strip, turned(steps, heads, (step, head) => values[step * heads + head]), 0, heads, steps, this.trace.kind === "agent" ? largest(values) : 255);
      this.strip.style.height = height(heads);
      describe(this.strip, `How much each of ${heads} heads of layer ${layer + 1} writes at each of ${steps} steps`);
      if (this.difference) this.showDrift();
    }
    this.cursor.style.left = `${(100 * t) / steps}%`;
    this.cursor.style.width = `${100 / steps}%`;
  }

  showDrift() {
    const { expectations, memories } = this.difference;
    const rows = [expectations, ...memories];
    drawPixels(this.drift, rows.flat(), 0, rows.length, expectations.length, 1);
    this.drift.style.height = height(rows.length);
    const first = expectations.findIndex((x) => x > 0.5);
    describe(this.drift, first < 0 ? "No answer changes by much" : `Answers change from token ${first + 1} on`);
  }

  showMatrix(parts, shape, matrix, number, layer, head) {
    const { rows, cols } = shape;
    const [size, scale] = [rows * cols, this.trace.scales[layer][number]];
    drawLarge(prepare(parts.large, LARGE.width, LARGE.height), matrix, head, rows, cols, scale);
    const changed = changedCells(matrix.write, head * size, size, scale).length;
    const strength = matrix.beta ? `, β ${matrix.beta[head].toFixed(2)}` : "";
    const most = largest(matrix.weights, head * size, size).toFixed(2);
    describe(parts.large, `${shape.name} of head ${head + 1} in layer ${layer + 1}, ${rows} by ${cols}: ${changed} cells changed, largest weight ${most}${strength}`);
    parts.small.forEach((one, h) => {
      drawPixels(one.canvas, matrix.weights, h * size, rows, cols, scale);
      const beta = matrix.beta?.[h];
      one.fill.style.width = beta === undefined ? "0" : `${100 * beta}%`;
      one.label.textContent = beta === undefined ? "adds" : beta.toFixed(2);
      one.button.setAttribute("aria-pressed", String(h === head));
      one.button.setAttribute("aria-label", `Head ${h + 1} of ${shape.name}, ${beta === undefined ? "no β, it only adds" : `β ${beta.toFixed(2)}`}`);
    });
    parts.now.textContent = `Head ${head + 1} ${writing(matrix.beta?.[head])}`;
    this.showSources(parts, matrix.shares);
  }

  // where the read came from: every write that is still in the memory has its share
  showSources(parts, shares) {
    const order = [...shares.keys()].sort((i, j) => Math.abs(shares[j]) - Math.abs(shares[i])).slice(0, 3);
    const name = (i) => [make("code", "", this.trace.tokens[i]), ` (step ${i + 1 + (this.trace.first ?? 0)}, ${percent(shares[i])})`];
    parts.cause.replaceChildren("Most of this read was written at ", ...order.flatMap((i, n) => (n ? [", ", ...name(i)] : name(i))), order.some((i) => shares[i] < 0) ? "; less than 0 takes away." : ".");
    const steps = this.trace.tokens.length;
    const padded = new Float32Array(steps);
    padded.set(shares);
    drawPixels(parts.strip, padded, 0, 1, steps, Math.max(largest(shares), 0.2));
    describe(parts.strip, "Share of each step's write in this read; orange adds, blue takes away");
  }
}
