// The state of the page in its address, so that a link shows the same step.

export function readAddress() {
  const given = new URLSearchParams(location.hash.slice(1));
  const number = (name) => Math.max(0, Number.parseInt(given.get(name) ?? "0", 10) || 0);
  const edits = new Map();
  for (const part of (given.get("edit") ?? "").split(",")) {
    const place = part.indexOf(":");
    if (place > 0) edits.set(Number.parseInt(part.slice(0, place), 10), part.slice(place + 1));
  }
  return {
    a: given.get("a") ?? "",
    b: given.get("b") ?? "",
    text: given.get("text") ?? "",
    t: given.has("t") ? number("t") - 1 : 0,
    layer: given.has("layer") ? number("layer") - 1 : 0,
    head: given.has("head") ? number("head") - 1 : 0,
    matrix: given.has("matrix") ? number("matrix") - 1 : 0,
    // whether it says which head to show
    placed: given.has("layer") || given.has("head"),
    edits,
    context: number("context"),
    seed: given.has("seed") ? number("seed") : null,
    sample: given.get("sample") === "yes",
  };
}

export function writeAddress(state, kind) {
  const parts = { a: state.a };
  if (state.b) parts.b = state.b;
  if (kind === "agent") Object.assign(parts, { seed: state.seed, sample: state.sample ? "yes" : "no" });
  else parts.text = state.text;
  if (kind === "language" && state.context) parts.context = state.context;
  // people count from 1
  Object.assign(parts, { t: state.t + 1, layer: state.layer + 1, head: state.head + 1 });
  if (state.matrix) parts.matrix = state.matrix + 1;
  if (state.edits.size) parts.edit = [...state.edits].map(([step, symbol]) => `${step}:${symbol}`).join(",");
  history.replaceState(null, "", `#${new URLSearchParams(parts)}`);
}
