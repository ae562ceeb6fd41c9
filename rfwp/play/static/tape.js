// The tokens of the text with what each model says below them and what is right; a list also gets its nesting drawn.

const SILENT = new Set(["_", ""]);
const show = (answer) => (SILENT.has(answer) ? "·" : answer);
const ENDS = new Set([";", "<eos>"]);

// the classes of the legend, by bits
const LEVELS = [2, 5, 8, 12];
const level = (bits) => `s${LEVELS.filter((least) => bits >= least).length}`;

function line(kind, text, title) {
  const span = document.createElement("span");
  span.className = kind;
  span.textContent = text;
  if (title) span.title = title;
  return span;
}

// one row of a chip: what a model says, beside what is right and, after a change, what it said before
function answerLine(trace, before, t) {
  const [said, right] = [trace.predictions[t], trace.truth[t]];
  const counts = !(trace.kind === "listops" && right === "");
  const wrong = counts && said !== right;
  const kind = !counts ? "quiet" : wrong ? "wrong" : SILENT.has(said) ? "quiet" : "right";
  const text = !counts ? "·" : wrong ? `✗${show(said)}` : show(said);
  const span = line(`answer ${kind}`, text, `${trace.model}: ${Math.round(100 * trace.confidence[t])} % sure`);
  if (before && counts && before.predictions[t] !== said) {
    span.classList.add("changed");
    span.title += `, before the change: ${show(before.predictions[t])}`;
  }
  return span;
}

// one row of a word: how much it surprised a model, and how much more with its context cut
function surpriseLines({ trace, cut }, t) {
  const bits = trace.surprise[t];
  if (bits === null) return [line("answer quiet", "·")];
  const lines = [line("answer bits", bits.toFixed(1), `${trace.model}: ${bits.toFixed(2)} bits`)];
  if (cut) {
    const more = cut.surprise[t] - bits;
    lines.push(line(`answer bits ${more >= 1 ? "worse" : "quiet"}`, cut.surprise[t].toFixed(1), `with the last ${cut.context} words: ${cut.surprise[t].toFixed(2)} bits`));
  }
  return lines;
}

function speakWord(panes, t) {
  const first = panes[0].trace;
  const parts = [`step ${t + 1}`, `word ${first.tokens[t]}`];
  if (first.unknown.includes(t)) parts.push("not in the vocabulary, read as <unk>");
  for (const { trace, cut } of panes) {
    if (trace.surprise[t] === null) continue;
    parts.push(`${trace.model} surprised by ${trace.surprise[t].toFixed(1)} bits`);
    if (cut) parts.push(`${cut.surprise[t].toFixed(1)} with the last ${cut.context} words only`);
  }
  return parts.join(", ");
}

function speak(panes, t) {
  if (panes[0].trace.kind === "language") return speakWord(panes, t);
  const first = panes[0].trace;
  const parts = [`step ${t + 1}`, `token ${first.tokens[t]}`];
  for (const { trace } of panes) if (!SILENT.has(trace.truth[t]) || trace.predictions[t] !== trace.truth[t]) parts.push(`${trace.model} says ${trace.predictions[t]}`);
  if (!SILENT.has(first.truth[t])) parts.push(`right is ${first.truth[t]}`);
  return parts.join(", ");
}

export class Tape {
  constructor(element, onSeek, onEdit) {
    this.element = element;
    this.chips = [];
    this.sources = [];
    this.current = 0;
    element.addEventListener("click", (event) => {
      const chip = event.target.closest(".chip");
      if (chip) onSeek(this.chips.indexOf(chip));
    });
    element.addEventListener("keydown", (event) => {
      if (event.key !== "Enter") return;
      event.preventDefault();
      onEdit();
    });
  }

  // panes: [{trace, before}], edits: the changed steps
  fill(panes, edits) {
    const trace = panes[0].trace;
    const lists = trace.kind === "listops";
    const language = trace.kind === "language";
    this.element.classList.toggle("lists", lists);
    this.element.classList.toggle("language", language);
    this.chips = trace.tokens.map((token, t) => {
      const chip = document.createElement("button");
      chip.type = "button";
      chip.className = "chip";
      chip.tabIndex = -1;
      chip.setAttribute("aria-label", speak(panes, t));
      const strength = line("strength", "");
      strength.setAttribute("aria-hidden", "true");
      chip.append(line("token", token === "<eos>" ? "¶" : token), strength);
      if (language) {
        if (trace.surprise[t] !== null) chip.firstChild.classList.add(level(trace.surprise[t]));
        chip.classList.toggle("unknown", trace.unknown.includes(t));
        for (const pane of panes) chip.append(...surpriseLines(pane, t));
        return chip;
      }
      for (const pane of panes) chip.append(answerLine(pane.trace, pane.before, t));
      chip.append(line("truth-line", SILENT.has(trace.truth[t]) ? " " : trace.truth[t]));
      if (edits.has(t)) chip.classList.add("edited");
      return chip;
    });
    this.element.replaceChildren(...(lists ? this.nest(trace) : this.group(trace)));
    this.current = 0;
  }

  // a statement stays on one line
  group(trace) {
    const statements = [];
    let open = null;
    this.chips.forEach((chip, t) => {
      if (!open) statements.push((open = document.createElement("span")));
      open.className = "statement";
      open.append(chip);
      // the end of the line before the text opens the first one
      if (t && ENDS.has(trace.tokens[t])) open = null;
    });
    return statements;
  }

  // brackets above the tokens, the outermost list on top
  nest(trace) {
    const [step, rise] = [40, 9];
    const deepest = Math.max(...trace.nesting.map(([depth]) => depth));
    const height = (deepest + 1) * rise + 8;
    const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
    for (const [name, value] of Object.entries({ width: trace.tokens.length * step, height, "aria-hidden": "true", class: "arcs" })) svg.setAttribute(name, value);
    this.arcs = [];
    trace.nesting.forEach(([depth, opened, value], t) => {
      if (opened === null) return;
      const top = depth * rise;
      const [left, right] = [opened * step + step / 2, t * step + step / 2];
      const path = document.createElementNS(svg.namespaceURI, "path");
      path.setAttribute("d", `M${left} ${height} V${top + 5} q0 -5 5 -5 H${right - 5} q5 0 5 5 V${height}`);
      const label = document.createElementNS(svg.namespaceURI, "text");
      label.setAttribute("x", right + 4);
      label.setAttribute("y", top + 9);
      label.textContent = value;
      svg.append(path, label);
      this.arcs.push({ path, label, opened, closed: t });
    });
    const row = document.createElement("div");
    row.className = "row";
    row.append(...this.chips);
    return [svg, row];
  }

  move(t, focus) {
    const [old, chip] = [this.chips[this.current], this.chips[t]];
    old?.classList.remove("now");
    old?.removeAttribute("aria-current");
    if (old) old.tabIndex = -1;
    this.current = t;
    if (!chip) return;
    chip.classList.add("now");
    chip.setAttribute("aria-current", "step");
    chip.tabIndex = 0;
    if (focus) chip.focus({ preventScroll: true });
    this.reveal(chip);
    for (const arc of this.element.classList.contains("lists") ? this.arcs : []) {
      const inside = arc.opened <= t && t <= arc.closed;
      arc.path.classList.toggle("inside", inside);
      arc.label.classList.toggle("inside", inside);
    }
  }

  // how strongly a head writes at each token, from 0 to 255; null under a rule that has no β
  strengthen(betas, heads, head) {
    this.element.classList.toggle("without-beta", !betas);
    if (betas) this.chips.forEach((chip, t) => chip.style.setProperty("--beta", (betas[t * heads + head] / 255).toFixed(3)));
  }

  // the writes that a read came from, by their shares
  underline(shares) {
    for (const chip of this.sources) chip.classList.remove("source", "main-source", "takes-away");
    this.sources = [];
    shares.forEach((share, t) => {
      if (Math.abs(share) < 0.08) return;
      this.chips[t].classList.add("source");
      this.chips[t].classList.toggle("main-source", Math.abs(share) >= 0.3);
      this.chips[t].classList.toggle("takes-away", share < 0);
      this.sources.push(this.chips[t]);
    });
  }

  // inside the tape only: the page stays where it is
  reveal(chip) {
    const [outer, inner] = [this.element.getBoundingClientRect(), chip.getBoundingClientRect()];
    if (inner.top < outer.top || inner.bottom > outer.bottom) this.element.scrollTop += inner.top - outer.top - outer.height / 3;
    if (inner.left < outer.left || inner.right > outer.right) this.element.scrollLeft += inner.left - outer.left - outer.width / 3;
  }

  get focused() {
    return this.chips.includes(document.activeElement);
  }
}
