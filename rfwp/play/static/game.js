// Games: an agent plays in the server, step by step; the page keeps what it has seen.

import { writeAddress } from "./address.js";
import * as api from "./api.js";
import { drawPixels, palette, prepare } from "./heat.js";
import { describe, fillLayers, find, option, pressLayer } from "./page.js";
import { Pane } from "./pane.js";
import { drawPicture } from "./picture.js";

const MOST_AT_ONCE = 32;
const LINE = { width: 480, height: 90 };

export class Game {
  constructor(page) {
    this.page = page;
    this.game = null;
    // the moments that the server still keeps, the oldest first
    this.moments = [];
    this.over = false;
    this.pane = null;
    this.starting = 0;
    this.drawing = 0;
    find("new-game").addEventListener("click", () => this.start(Number(find("seed").value)));
    find("sample").addEventListener("change", () => this.start(Number(find("seed").value)));
    find("agent").addEventListener("change", () => {
      this.state.a = find("agent").value;
      this.start(Number(find("seed").value));
    });
    for (const id of ["actions", "values"]) {
      const frame = find(id).parentElement;
      frame.addEventListener("click", (event) => {
        const box = frame.getBoundingClientRect();
        this.seek(this.first + Math.floor(((event.clientX - box.left) / box.width) * this.moments.length));
      });
    }
  }

  get state() {
    return this.page.state;
  }

  get first() {
    return this.moments[0]?.t ?? 0;
  }

  get last() {
    return this.moments.at(-1)?.t ?? 0;
  }

  get now() {
    return this.state.t;
  }

  get pace() {
    return 1000 / this.game.steps_per_s;
  }

  get moment() {
    return this.moments[this.now - this.first];
  }

  say(text) {
    find("game-message").textContent = text;
  }

  // --- Playing ---

  async enter() {
    const { state, page } = this;
    const agents = page.known.models.filter((one) => one.kind === "agent");
    find("agent").replaceChildren(...agents.map((one) => option(one.name, one.name)));
    find("agent").value = state.a;
    find("sample").checked = state.sample;
    await this.start(state.seed ?? 0, state.t);
  }

  leave() {
    // what is still on its way is not drawn
    this.starting++;
    this.drawing++;
    this.game = null;
  }

  async start(seed, t = 0) {
    const { state } = this;
    const mine = ++this.starting;
    this.page.player.stop();
    delete document.body.dataset.shown;
    Object.assign(state, { seed, sample: find("sample").checked, t: 0, b: "" });
    find("seed").value = seed;
    try {
      const game = await api.startGame(state.a, seed, state.sample);
      if (mine !== this.starting) return;
      Object.assign(this, { game, moments: [], over: false, pane: null });
      this.say("");
      // an address may say how far it was played
      await this.play(Math.min(MOST_AT_ONCE, t + 1));
      while (!this.over && this.last < t && mine === this.starting) await this.play(Math.min(MOST_AT_ONCE, t - this.last));
      state.t = Math.min(t, this.last);
      await this.show();
    } catch (error) {
      if (mine === this.starting) this.say(error.message);
    }
  }

  async play(steps) {
    const data = await api.playOn(this.game.id, steps);
    this.moments.push(...data.moments);
    this.moments = this.moments.filter((moment) => moment.t >= data.first);
    this.over = data.over;
    this.latest = data;
    if (!this.pane && this.moments.length) this.fill();
  }

  // one step on: a new one if there is none yet; whether more may follow
  async advance() {
    if (!this.game) return false;
    if (this.playing) return true;
    this.playing = true;
    try {
      if (this.now >= this.last && !this.over) await this.play(1);
      if (!this.game) return false;
      this.state.t = Math.min(this.now + 1, this.last);
      await this.show();
      return !(this.over && this.now >= this.last);
    } catch (error) {
      this.say(error.message);
      return false;
    } finally {
      this.playing = false;
    }
  }

  seek(t) {
    if (!this.moments.length) return;
    this.state.t = Math.max(this.first, Math.min(this.last, t));
    this.show();
  }

  rewind() {
    if (this.over && this.now >= this.last) this.seek(this.first);
  }

  // --- Showing a step ---

  fill() {
    const { layers, heads, matrices } = this.latest;
    const model = this.page.model(this.state.a);
    find("memory").hidden = !layers;
    find("action-names").textContent = `Rows from top to bottom: ${this.game.actions.join(", ")}.`;
    this.state.layer = Math.max(0, Math.min(this.state.layer, layers - 1));
    this.state.head = Math.max(0, Math.min(this.state.head, heads - 1));
    this.trace = { kind: "agent", tokens: [], truth: [], written: [], scales: [], matrices, layers, heads, first: 0 };
    this.pane = layers ? new Pane(model, this.trace, null, null, (t) => this.seek(this.first + t), (head) => this.choose({ head })) : {};
    find("panes").replaceChildren(...(layers ? [this.pane.element] : []));
    find("panes").classList.remove("two");
    fillLayers(layers, this.state.layer, (layer) => this.choose({ layer }));
  }

  choose(changes) {
    Object.assign(this.state, changes);
    this.show();
  }

  async show() {
    const { moment, game } = this;
    if (!moment) return;
    const [mine, { t, action }] = [++this.drawing, moment];
    this.showGame(moment);
    const done = game.actions[action];
    const end = this.over && t === this.last ? ", the game is over" : "";
    this.page.player.update(`${t + 1} / ${this.last + 1}  ${done}${end}`, `step ${t + 1}, action ${done}${end}`);
    pressLayer(this.state.layer);
    writeAddress(this.state, "agent");
    try {
      if (this.latest.layers) await this.showMemory(mine, moment);
    } catch (error) {
      this.say(error.message);
    }
    if (mine === this.drawing) document.body.dataset.shown = `${t + 1}`;
  }

  async showMemory(mine, { t, probabilities }) {
    const data = await api.gameStep(this.game.id, t, this.state.layer, this.state.head);
    if (mine !== this.drawing) return;
    const { actions } = this.game;
    const expected = actions.map((name, n) => [name, probabilities[n]]).sort((a, b) => b[1] - a[1]);
    const done = this.moments.map((moment) => actions[moment.action]);
    Object.assign(this.trace, { tokens: done, truth: done, scales: this.latest.scales, first: this.first });
    this.pane.written = this.trace.scales.map((_, layer) => Float32Array.from(this.moments.flatMap((moment) => moment.written[layer])));
    this.pane.update({ ...data, t: t - this.first, expected: expected.slice(0, 6) });
  }

  showGame(moment) {
    const { actions } = this.game;
    const most = actions.length - 1;
    find("screen").src = `data:image/png;base64,${moment.frame}`;
    find("screen").alt = `The screen at step ${moment.t + 1}; the agent does ${actions[moment.action]}`;
    find("score").textContent = `score ${moment.score}, value ${moment.value.toFixed(2)}`;
    const steps = this.moments.length;
    const strip = Array.from({ length: (most + 1) * steps }, (_, i) => this.moments[i % steps].probabilities[Math.floor(i / steps)]);
    drawPixels(find("actions"), strip, 0, most + 1, steps, 1);
    find("actions").style.height = `${Math.max(40, Math.min(120, (most + 1) * 12))}px`;
    describe(find("actions"), `Probabilities of ${actions.length} actions over ${steps} steps; now ${actions.map((name, n) => `${name} ${Math.round(100 * moment.probabilities[n])} %`).join(", ")}`);
    this.showValues(moment);
    for (const id of ["actions", "values"]) {
      const { style } = find(id).nextElementSibling;
      style.left = `${(100 * (moment.t - this.first)) / steps}%`;
      style.width = `${100 / steps}%`;
    }
  }

  showValues(moment) {
    const values = this.moments.map((one) => one.value);
    const [low, high] = [Math.min(0, ...values), Math.max(0.001, ...values)];
    const context = prepare(find("values"), LINE.width, LINE.height);
    const y = (v) => 4 + (LINE.height - 8) * (1 - (v - low) / (high - low));
    const x = (n) => ((n + 0.5) * LINE.width) / values.length;
    const { ink, dim } = palette();
    context.lineWidth = 1;
    context.strokeStyle = dim;
    context.beginPath();
    context.moveTo(0, y(0));
    context.lineTo(LINE.width, y(0));
    context.stroke();
    context.lineWidth = 2;
    context.strokeStyle = ink;
    context.beginPath();
    values.forEach((v, n) => context.lineTo(x(n), y(v)));
    context.stroke();
    find("value-range").textContent = `Now ${moment.value.toFixed(2)}; the picture goes from ${low.toFixed(2)} to ${high.toFixed(2)}, with a line at 0.`;
    describe(find("values"), `Value over ${values.length} steps, from ${low.toFixed(2)} to ${high.toFixed(2)}; now ${moment.value.toFixed(2)}`);
  }

  // --- Sharing ---

  picture() {
    const { moment, game } = this;
    const now = `does ${game.actions[moment.action]}, score ${moment.score}, value ${moment.value.toFixed(2)}`;
    return drawPicture(this.pane.data ? [this.pane] : [], { step: `Step ${moment.t + 1}`, before: `${game.model}, seed ${game.seed}`, now }, find("screen"));
  }

  exportAddress() {
    return api.gameExportAddress(this.game.id, this.now);
  }
}
