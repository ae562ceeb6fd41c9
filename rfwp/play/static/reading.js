// Texts: one or two models read the same program, list or running text, step by step.

import { writeAddress } from "./address.js";
import * as api from "./api.js";
import { fillLayers, find, option, pressLayer } from "./page.js";
import { Pane } from "./pane.js";
import { drawPicture } from "./picture.js";
import { HELP, sayFound, truthNow, value } from "./saying.js";
import { Tape } from "./tape.js";

export class Reading {
  pace = 450;
  first = 0;

  constructor(page) {
    this.page = page;
    this.panes = [];
    // only the latest request may draw
    this.reading = 0;
    this.drawing = 0;
    this.writing = null;
    this.tape = new Tape(find("tape"), (t) => this.seek(t), () => find(this.isLanguage ? "context" : "edit").focus());
    this.connect();
  }

  get state() {
    return this.page.state;
  }

  get isLanguage() {
    return this.page.kind() === "language";
  }

  get now() {
    return this.state.t;
  }

  get last() {
    return Math.max(0, (this.panes[0]?.trace.tokens.length ?? 0) - 1);
  }

  say(text) {
    find("message").textContent = text;
  }

  // --- Reading a text ---

  async readOne(name) {
    const { state } = this;
    const [model, onSeek, onHead] = [this.page.model(name), (t) => this.seek(t), (head, matrix) => this.chooseHead(head, matrix)];
    const before = await api.trace(name, state.text);
    if (this.isLanguage) {
      const pane = new Pane(model, before, null, null, onSeek, onHead);
      pane.cut = state.context ? await api.cut(before.id, state.context) : null;
      return pane;
    }
    for (const t of state.edits.keys()) if (t >= before.tokens.length) state.edits.delete(t);
    if (!state.edits.size) return new Pane(model, before, null, null, onSeek, onHead);
    const trace = await api.trace(name, before.tokens.map((token, t) => state.edits.get(t) ?? token).join(" "));
    const difference = await api.difference(before.id, trace.id);
    return new Pane(model, trace, before, difference, onSeek, onHead);
  }

  async read() {
    const { state } = this;
    this.page.player.stop();
    const mine = ++this.reading;
    document.body.classList.add("busy");
    delete document.body.dataset.shown;
    try {
      const made = [await this.readOne(state.a)];
      if (state.b) made.push(await this.readOne(state.b));
      if (!state.placed) await this.place(made[0].trace);
      // the first step is there before the old one goes
      await Promise.all(made.map(({ trace }) => this.askStep(trace, Math.min(state.t, trace.tokens.length - 1))));
      if (mine !== this.reading) return false;
      this.panes = made;
      this.say("");
      this.fill();
      await this.show();
      return true;
    } catch (error) {
      if (mine === this.reading) this.report(error);
      return false;
    } finally {
      if (mine === this.reading) document.body.classList.remove("busy");
    }
  }

  // the first head that is shown is one that tells something
  async place(trace) {
    this.state.placed = true;
    if (trace.kind !== "code-execution") return;
    // a program without a print has none
    const { layer, head, matrix } = await api.telling(trace.id, 0).catch(() => this.state);
    Object.assign(this.state, { layer, head, matrix });
  }

  report(error) {
    this.say(error.message);
    const place = /character (\d+)/.exec(error.message);
    // the slip is in the text only if nothing was changed below it
    if (place && !this.state.edits.size && document.activeElement === find("run")) {
      const at = Number(place[1]) - 1;
      find("text").focus();
      find("text").setSelectionRange(at, at + 1);
    }
  }

  fill() {
    const { state, panes } = this;
    find("panes").replaceChildren(...panes.map((pane) => pane.element));
    find("tape-help").textContent = `${this.rows()} ${HELP[this.page.kind()].tape}`;
    find("panes").classList.toggle("two", panes.length > 1);
    this.tape.fill(panes, state.edits);
    this.tape.shown = "";
    state.t = Math.min(state.t, this.last);
    const { layers, heads } = panes[0].trace;
    state.layer = Math.min(state.layer, layers - 1);
    state.head = Math.min(state.head, heads - 1);
    state.matrix = Math.min(state.matrix, panes[0].trace.matrices.length - 1);
    find("found").textContent = "";
    fillLayers(layers, state.layer, (layer) => {
      state.layer = layer;
      this.show();
    });
    if (this.isLanguage) return this.fillCompared();
    find("undo").disabled = !state.edits.size;
    return find("edit").replaceChildren(...this.page.model(state.a).symbols.map((symbol) => option(symbol, symbol)));
  }

  rows() {
    const names = this.panes.map((pane) => pane.model.name);
    if (!this.isLanguage) return `Under each token: what ${names.join(" and ")} ${names.length > 1 ? "say" : "says"}, and in grey what is right; · is nothing.`;
    const { context } = this.state;
    const rows = names.flatMap((name) => (context ? [name, `${name} with the last ${context} words only`] : [name]));
    return `Under each word, its surprise in bits: ${rows.join(", ")}. The colour is that of ${names[0]}.`;
  }

  // --- Showing a step ---

  async show() {
    if (!this.panes.length) return;
    const [mine, t] = [++this.drawing, this.state.t];
    this.showControls(t);
    try {
      const data = await Promise.all(this.panes.map(({ trace }) => this.askStep(trace, t)));
      if (mine !== this.drawing) return;
      const { matrix } = this.state;
      this.panes.forEach((pane, number) => pane.update(data[number], number ? -1 : matrix));
      this.tape.underline(data[0].matrices[matrix].shares);
      this.showStrengths(data[0].layer, matrix, data[0].head);
      document.body.dataset.shown = `${t + 1}`;
      if (t < this.last) for (const { trace } of this.panes) this.askStep(trace, t + 1).catch(() => {});
    } catch (error) {
      // the server keeps the latest texts only
      if (error.gone) this.read();
      else this.say(error.message);
    }
  }

  // of two models, one may have fewer layers or heads
  askStep(trace, t) {
    return api.step(trace.id, t, Math.min(this.state.layer, trace.layers - 1), Math.min(this.state.head, trace.heads - 1));
  }

  // below the tokens, for the chosen head; the same until another one is chosen
  showStrengths(layer, matrix, head) {
    const [{ strengths, trace }] = this.panes;
    const shown = `${layer} ${matrix} ${head}`;
    if (this.tape.shown === shown) return;
    this.tape.shown = shown;
    this.tape.strengthen(strengths[layer][matrix], trace.heads, head);
    find("chosen").textContent = `layer ${layer + 1}, head ${head + 1}, ${trace.matrices[matrix].name}`;
    find("mark-write").hidden = !strengths[layer][matrix];
  }

  showControls(t) {
    const trace = this.panes[0].trace;
    this.tape.move(t, this.tape.focused);
    this.page.player.update(`${t + 1} / ${this.last + 1}  reads  ${trace.tokens[t]}`, `step ${t + 1}, token ${trace.tokens[t]}`);
    find("edit-step").textContent = t + 1;
    find("edit").value = trace.tokens[t];
    if (trace.kind === "language") find("word-now").replaceChildren(...this.wordNow(t));
    else find("truth").replaceChildren(...truthNow(trace, t));
    pressLayer(this.state.layer);
    writeAddress(this.state, trace.kind);
  }

  wordNow(t) {
    const { trace } = this.panes[0];
    const parts = [value(trace.tokens[t])];
    if (trace.unknown.includes(t)) parts.push(value("unknown: read as <unk>", "value fresh"));
    for (const { model, trace: { surprise }, cut } of t ? this.panes : []) {
      parts.push(value(`${model.name}: ${surprise[t].toFixed(2)} bits, 1 in ${Math.round(2 ** surprise[t]).toLocaleString("en")}`));
      if (cut) parts.push(value(`with the last ${cut.context} words: ${cut.surprise[t].toFixed(2)} bits`));
    }
    return parts;
  }

  seek(t) {
    if (!this.panes.length) return;
    this.state.t = Math.max(0, Math.min(this.last, t));
    this.show();
  }

  advance() {
    this.seek(this.state.t + 1);
    return this.state.t < this.last;
  }

  rewind() {
    if (this.state.t >= this.last) this.seek(0);
  }

  chooseHead(head, matrix) {
    Object.assign(this.state, { head, matrix });
    this.show();
  }

  // the head that shows best where the variables are kept, at the print that comes next
  async findHead() {
    if (!this.panes.length) return;
    try {
      const { trace } = this.panes[0];
      const found = await api.telling(trace.id, this.now);
      const { t, layer, head, matrix } = found;
      Object.assign(this.state, { t, layer, head, matrix });
      await this.show();
      find("found").textContent = sayFound(trace, found);
    } catch (error) {
      if (error.gone) this.read();
      else find("found").textContent = error.message;
    }
  }

  async demonstrate(text) {
    find("text").value = text;
    find("player").focus();
    if (await this.readText(text)) await this.findHead();
  }

  // --- Choices ---

  fillModels() {
    const { state, page } = this;
    const same = page.known.models.filter((one) => one.kind === page.kind());
    find("model-a").replaceChildren(...same.map((one) => option(one.name, one.name)));
    find("model-b").replaceChildren(option("", "none"), ...same.filter((one) => one.name !== state.a).map((one) => option(one.name, one.name)));
    find("model-a").value = state.a;
    find("model-b").value = state.b;
    find("model-b").disabled = same.length < 2;
    const help = HELP[page.kind()];
    find("task-help").textContent = help.task;
    find("size-label").textContent = help.size ?? "";
    if (help.size) find("size").max = page.known.limits[page.kind()];
  }

  // the state of the page has changed: models, text, or all of it
  async enter() {
    const { state, page } = this;
    state.text ||= page.known.examples[page.kind()];
    if (this.isLanguage) state.edits.clear();
    find("text").value = state.text;
    find("size").value = Math.min(page.model(state.a).size ?? 10, 10);
    if (state.context) find("context").value = state.context;
    find("memory").hidden = false;
    this.fillModels();
    await this.read();
  }

  leave() {
    this.writing?.abort();
  }

  readText(text) {
    Object.assign(this.state, { text, t: 0 });
    this.state.edits.clear();
    return this.read();
  }

  async changeToken() {
    const { state } = this;
    const [t, symbol] = [state.t, find("edit").value];
    const before = new Map(state.edits);
    state.edits.set(t, symbol);
    const original = this.panes[0].before ?? this.panes[0].trace;
    if (original.tokens[t] === symbol) state.edits.delete(t);
    if (await this.read()) return;
    // not a text of the language: the earlier one stays, and the message says why
    state.edits = before;
    find("edit").value = this.panes[0].trace.tokens[t];
  }

  async chooseModels() {
    const { state } = this;
    state.a = find("model-a").value;
    state.b = find("model-b").value === state.a ? "" : find("model-b").value;
    this.fillModels();
    await this.read();
  }

  // --- Language models ---

  async goOn() {
    if (this.writing) return this.writing.abort();
    this.page.player.stop();
    this.writing = new AbortController();
    find("go-on").textContent = "Stop";
    const field = find("text");
    try {
      const [words, temperature] = [Number(find("words").value), Number(find("temperature").value)];
      for await (const word of api.continued(this.state.a, field.value, words, temperature, this.writing.signal)) {
        const gap = !field.value || /\s$/.test(field.value) ? "" : " ";
        field.value += word === "<eos>" ? "\n" : gap + word;
        field.scrollTop = field.scrollHeight;
      }
    } catch (error) {
      if (error.name !== "AbortError") return this.say(error.message);
    } finally {
      this.writing = null;
      find("go-on").textContent = "Go on";
    }
    const from = this.last;
    this.state.text = field.value;
    this.state.t = from;
    return this.read();
  }

  compare(context) {
    this.state.context = context;
    return this.read();
  }

  fillCompared() {
    const mean = (bits) => bits.slice(1).reduce((sum, b) => sum + b, 0) / Math.max(1, bits.length - 1);
    const { context } = this.state;
    find("no-compare").disabled = !context;
    find("compared").textContent = this.panes
      .map(({ model, trace, cut }) => {
        const all = `${model.name}: ${mean(trace.surprise).toFixed(2)} bits a word with all words before it`;
        return cut ? `${all}, ${mean(cut.surprise).toFixed(2)} with the last ${context}.` : `${all}.`;
      })
      .join(" ");
  }

  // --- Sharing ---

  picture() {
    const { tokens } = this.panes[0].trace;
    const from = Math.max(0, this.now - 12);
    const before = `${from ? "… " : ""}${tokens.slice(from, this.now).join(" ")}`;
    return drawPicture(this.panes, { step: `Step ${this.now + 1} of ${tokens.length}`, before, now: `reads  ${tokens[this.now]}` });
  }

  exportAddress() {
    return api.exportAddress(this.panes.map(({ trace }) => trace.id), this.now);
  }

  connect() {
    find("run").addEventListener("click", () => this.readText(find("text").value));
    find("text").addEventListener("keydown", (event) => {
      if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("run").click();
    });
    find("example").addEventListener("click", () => {
      find("text").value = this.page.known.examples[this.page.kind()];
      this.readText(find("text").value);
    });
    find("generate").addEventListener("click", async () => {
      try {
        const { text } = await api.generate(this.state.a, find("size").value);
        find("text").value = text;
        await this.readText(text);
      } catch (error) {
        this.say(error.message);
      }
    });
    find("find-head").addEventListener("click", () => this.findHead());
    for (const button of document.querySelectorAll("[data-program]")) button.addEventListener("click", () => this.demonstrate(button.dataset.program));
    for (const id of ["model-a", "model-b"]) find(id).addEventListener("change", () => this.chooseModels());
    find("edit").addEventListener("change", () => this.changeToken());
    find("undo").addEventListener("click", () => {
      this.state.edits.clear();
      this.read();
    });
    find("go-on").addEventListener("click", () => this.goOn());
    find("compare").addEventListener("click", () => this.compare(Number(find("context").value)));
    find("no-compare").addEventListener("click", () => this.compare(0));
  }
}
