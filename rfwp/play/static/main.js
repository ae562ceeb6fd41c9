// The page: its state, its controls, and the two models that read the same text.

import { readAddress, writeAddress } from "./address.js";
import * as api from "./api.js";
import { onSchemeChange } from "./heat.js";
import { Pane } from "./pane.js";
import { drawPicture, save } from "./picture.js";
import { Tape } from "./tape.js";

const find = (id) => document.getElementById(id);
const PACE = 450;
const ICONS = { play: "M4 2.5v11L13 8z", pause: "M3.5 2.5h3v11h-3zM9.5 2.5h3v11h-3z" };
const HELP = {
  "code-execution": {
    name: "Code execution",
    size: "statements",
    task: "A program of assignments, ++, −−, if and print. At the end of each print the model has to say the value; everywhere else it has to stay silent (·).",
    tape: "✗ marks a mistake. Underlined: the tokens whose writes the chosen head reads now.",
  },
  listops: {
    name: "ListOps",
    size: "levels",
    task: "Nested lists of MIN, MAX and FIRST, read once from left to right. At the last bracket the model has to say the value of the whole list.",
    tape: "The brackets above show the nesting, with the value of each list at its end. Only the last token has an answer; ✗ marks a mistake. Underlined: the tokens whose writes the chosen head reads now.",
  },
};

const state = readAddress();
let known = { models: [], limits: {}, examples: {} };
let panes = [];
let playing = 0;
// only the latest request may draw
let reading = 0;
let drawing = 0;

const tape = new Tape(find("tape"), seek, () => find("edit").focus());
const model = (name) => known.models.find((one) => one.name === name);
const steps = () => panes[0]?.trace.tokens.length ?? 0;

function say(text) {
  find("message").textContent = text;
}

function option(value, text) {
  const element = document.createElement("option");
  element.value = value;
  element.textContent = text;
  return element;
}

// --- Reading a text ---

const editedText = (tokens) => tokens.map((token, t) => state.edits.get(t) ?? token).join(" ");

async function readOne(name) {
  const before = await api.trace(name, state.text);
  for (const t of state.edits.keys()) if (t >= before.tokens.length) state.edits.delete(t);
  if (!state.edits.size) return new Pane(model(name), before, null, null, seek, chooseHead);
  const trace = await api.trace(name, editedText(before.tokens));
  const difference = await api.difference(before.id, trace.id);
  return new Pane(model(name), trace, before, difference, seek, chooseHead);
}

async function read() {
  stop();
  const mine = ++reading;
  document.body.classList.add("busy");
  delete document.body.dataset.shown;
  try {
    const made = [await readOne(state.a)];
    if (state.b) made.push(await readOne(state.b));
    // the first step is there before the old one goes
    await Promise.all(made.map(({ trace }) => askStep(trace, Math.min(state.t, trace.tokens.length - 1))));
    if (mine !== reading) return false;
    panes = made;
    say("");
    fill();
    await show();
    return true;
  } catch (error) {
    if (mine === reading) report(error);
    return false;
  } finally {
    if (mine === reading) document.body.classList.remove("busy");
  }
}

function report(error) {
  say(error.message);
  const place = /character (\d+)/.exec(error.message);
  // the slip is in the text only if nothing was changed below it
  if (place && !state.edits.size && document.activeElement === find("run")) {
    const at = Number(place[1]) - 1;
    find("text").focus();
    find("text").setSelectionRange(at, at + 1);
  }
}

function fill() {
  find("panes").replaceChildren(...panes.map((pane) => pane.element));
  const rows = [...panes.map((pane) => pane.model.name), "what is right"].join(", ");
  find("tape-help").textContent = `Under each token, from top to bottom: ${rows}. ${HELP[kind()].tape}`;
  find("panes").classList.toggle("two", panes.length > 1);
  tape.fill(panes, state.edits);
  find("slider").max = steps() - 1;
  state.t = Math.min(state.t, steps() - 1);
  const { layers, heads } = panes[0].trace;
  state.layer = Math.min(state.layer, layers - 1);
  state.head = Math.min(state.head, heads - 1);
  find("layers").replaceChildren(...Array.from({ length: layers }, (_, layer) => layerButton(layer)));
  find("undo").disabled = !state.edits.size;
  find("edit").replaceChildren(...model(state.a).symbols.map((symbol) => option(symbol, symbol)));
}

function layerButton(layer) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = `Layer ${layer + 1}`;
  button.addEventListener("click", () => {
    state.layer = layer;
    show();
  });
  return button;
}

// --- Showing a step ---

async function show() {
  if (!panes.length) return;
  const [mine, t] = [++drawing, state.t];
  showControls(t);
  try {
    const data = await Promise.all(panes.map(({ trace }) => askStep(trace, t)));
    if (mine !== drawing) return;
    panes.forEach((pane, number) => pane.update(data[number]));
    tape.underline(data[0].matrices[0].shares);
    document.body.dataset.shown = `${t + 1}`;
    prefetch(t + 1);
  } catch (error) {
    // the server keeps the latest texts only
    if (error.gone) read();
    else say(error.message);
  }
}

// of two models, one may have fewer layers or heads
const askStep = (trace, t) => api.step(trace.id, t, Math.min(state.layer, trace.layers - 1), Math.min(state.head, trace.heads - 1));

function prefetch(t) {
  if (t < steps()) for (const { trace } of panes) askStep(trace, t);
}

function showControls(t) {
  const trace = panes[0].trace;
  tape.move(t, tape.focused);
  find("slider").value = t;
  find("slider").setAttribute("aria-valuetext", `step ${t + 1}, token ${trace.tokens[t]}`);
  find("where").textContent = `${t + 1} / ${steps()}  reads  ${trace.tokens[t]}`;
  find("edit-step").textContent = t + 1;
  find("edit").value = trace.tokens[t];
  find("truth").replaceChildren(...truthNow(trace, t));
  [...find("layers").children].forEach((button, layer) => button.setAttribute("aria-pressed", String(layer === state.layer)));
  writeAddress(state);
}

function truthNow(trace, t) {
  const word = (text, kind) => Object.assign(document.createElement("span"), { textContent: text, className: kind });
  if (trace.kind === "listops") {
    const [depth, , value] = trace.nesting[t];
    return [word(`depth ${depth}`, "value"), ...(value === null ? [] : [word(`this list is ${value}`, "value")])];
  }
  const values = Object.entries(trace.variables[t]);
  const earlier = t ? trace.variables[t - 1] : {};
  if (!values.length) return [word("no variable has a value yet", "explain")];
  return values.map(([name, value]) => word(`${name} = ${value}`, earlier[name] === value ? "value" : "value fresh"));
}

function seek(t) {
  if (!steps()) return;
  state.t = Math.max(0, Math.min(steps() - 1, t));
  show();
}

function chooseHead(head) {
  state.head = head;
  show();
}

// --- Playing ---

function stop() {
  clearInterval(playing);
  playing = 0;
  find("play").querySelector("path").setAttribute("d", ICONS.play);
  find("play").setAttribute("aria-label", "Play");
}

function toggle() {
  if (playing) return stop();
  if (state.t >= steps() - 1) seek(0);
  playing = setInterval(() => {
    if (state.t >= steps() - 1) stop();
    else seek(state.t + 1);
  }, PACE);
  find("play").querySelector("path").setAttribute("d", ICONS.pause);
  find("play").setAttribute("aria-label", "Pause");
}

const KEYS = { ArrowLeft: () => seek(state.t - 1), ArrowRight: () => seek(state.t + 1), Home: () => seek(0), End: () => seek(steps() - 1), " ": toggle };

function onKey(event) {
  if (event.ctrlKey || event.metaKey || event.altKey || !(event.key in KEYS)) return;
  const target = event.target;
  if (target.closest("textarea, input, select")) return;
  // space presses the button that has the focus; a token is no such button
  if (event.key === " " && target.closest("button, a") && !target.closest(".chip")) return;
  event.preventDefault();
  KEYS[event.key]();
}

// --- Choices ---

const kind = () => model(state.a).kind;

function fillModels() {
  const same = known.models.filter((one) => one.kind === kind());
  find("model-a").replaceChildren(...same.map((one) => option(one.name, one.name)));
  find("model-b").replaceChildren(option("", "none"), ...same.filter((one) => one.name !== state.a).map((one) => option(one.name, one.name)));
  find("model-a").value = state.a;
  find("model-b").value = state.b;
  find("model-b").disabled = same.length < 2;
  const help = HELP[kind()];
  find("task-help").textContent = help.task;
  find("size-label").textContent = help.size;
  find("size").max = known.limits[kind()];
  const kinds = [...new Set(known.models.map((one) => one.kind))];
  find("kinds").hidden = kinds.length < 2;
  find("kinds").replaceChildren(...kinds.map(kindButton));
}

function kindButton(name) {
  const button = document.createElement("button");
  button.type = "button";
  button.textContent = HELP[name].name;
  button.setAttribute("aria-pressed", String(name === kind()));
  button.addEventListener("click", () => {
    if (name !== kind()) begin(known.models.find((one) => one.kind === name).name, "", known.examples[name]);
  });
  return button;
}

function begin(a, b, text) {
  Object.assign(state, { a, b, text, t: 0 });
  state.edits.clear();
  find("text").value = text;
  find("size").value = Math.min(model(a).size, 10);
  fillModels();
  return read();
}

function readText(text) {
  Object.assign(state, { text, t: 0 });
  state.edits.clear();
  return read();
}

async function changeToken() {
  const [t, symbol] = [state.t, find("edit").value];
  const before = new Map(state.edits);
  state.edits.set(t, symbol);
  const original = panes[0].before ?? panes[0].trace;
  if (original.tokens[t] === symbol) state.edits.delete(t);
  if (await read()) return;
  // not a text of the language: the earlier one stays, and the message says why
  state.edits = before;
  find("edit").value = panes[0].trace.tokens[t];
}

async function chooseModels() {
  state.a = find("model-a").value;
  state.b = find("model-b").value === state.a ? "" : find("model-b").value;
  fillModels();
  await read();
}

function connect() {
  find("run").addEventListener("click", () => readText(find("text").value));
  find("text").addEventListener("keydown", (event) => {
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) find("run").click();
  });
  find("example").addEventListener("click", () => begin(state.a, state.b, known.examples[kind()]));
  find("generate").addEventListener("click", async () => {
    try {
      const { text } = await api.generate(state.a, find("size").value);
      find("text").value = text;
      await readText(text);
    } catch (error) {
      say(error.message);
    }
  });
  for (const id of ["model-a", "model-b"]) find(id).addEventListener("change", chooseModels);
  find("slider").addEventListener("input", () => seek(Number(find("slider").value)));
  const jumps = { first: () => 0, back: () => state.t - 1, next: () => state.t + 1, last: () => steps() - 1 };
  for (const [id, where] of Object.entries(jumps)) find(id).addEventListener("click", () => seek(where()));
  find("play").addEventListener("click", toggle);
  find("edit").addEventListener("change", changeToken);
  find("undo").addEventListener("click", () => {
    state.edits.clear();
    read();
  });
  find("png").addEventListener("click", () => save(`rfwp-step-${state.t + 1}.png`, drawPicture(panes, state.t).toDataURL("image/png")));
  find("json").addEventListener("click", () => save(`rfwp-step-${state.t + 1}.json`, api.exportAddress(panes[0].trace.id, state.t)));
  find("link").addEventListener("click", async () => {
    await navigator.clipboard.writeText(location.href).catch(() => {});
    find("said").textContent = "copied";
  });
  document.addEventListener("keydown", onKey);
  onSchemeChange(show);
  addEventListener("hashchange", () => {
    Object.assign(state, readAddress());
    start();
  });
}

async function start() {
  if (!model(state.a)) state.a = known.models[0].name;
  if (!model(state.b) || model(state.b).kind !== kind() || state.b === state.a) state.b = "";
  state.text ||= known.examples[kind()];
  find("text").value = state.text;
  find("size").value = Math.min(model(state.a).size, 10);
  fillModels();
  await read();
  document.body.dataset.ready = "yes";
}

try {
  known = await api.models();
  connect();
  await start();
} catch (error) {
  say(error.message);
}
