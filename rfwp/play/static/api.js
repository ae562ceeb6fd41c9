// The server's answers; a mistake comes as an Error with the server's own line.

async function answer(response) {
  const data = await response.json().catch(() => ({ error: `the server answered with ${response.status}` }));
  if (response.ok) return data;
  const error = new Error(data.error);
  error.gone = response.status === 404;
  throw error;
}

async function call(address, options) {
  let response;
  try {
    response = await fetch(address, options);
  } catch {
    throw new Error("the server does not answer; is rfwp play still running?");
  }
  return answer(response);
}

export const models = () => call("/api/models");

export const generate = (model, size) => call(`/api/generate?${new URLSearchParams({ model, size })}`);

const posted = (data, more) => ({ method: "POST", headers: { "Content-Type": "application/json" }, body: JSON.stringify(data), ...more });

export const trace = (model, text) => call("/api/trace", posted({ model, text }));

export const difference = (one, other) => call(`/api/trace/${one}/difference/${other}`);

export const telling = (id, t) => call(`/api/trace/${id}/telling?t=${t}`);

export const cut = (id, context) => call(`/api/trace/${id}/cut?context=${context}`);

export const exportAddress = (ids, t) => `/api/trace/${ids[0]}/export?${new URLSearchParams([["t", t], ...ids.slice(1).map((id) => ["beside", id])])}`;

// words as they come; `signal` stops them
export async function* continued(model, text, words, temperature, signal) {
  const response = await fetch("/api/continue", posted({ model, text, words, temperature }, { signal }));
  if (!response.ok) await answer(response);
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let rest = "";
  for (;;) {
    const { value, done } = await reader.read();
    if (done) return;
    const lines = (rest + value).split("\n");
    rest = lines.pop();
    for (const line of lines) yield JSON.parse(line).word;
  }
}

export const startGame = (model, seed, sample) => call("/api/game", posted({ model, seed, sample }));

export const playOn = (id, steps) => call(`/api/game/${id}/play`, posted({ steps }));

export const gameStep = (id, t, layer, head) => call(`/api/game/${id}/step?${new URLSearchParams({ t, layer, head })}`).then(decodeStep);

export const gameExportAddress = (id, t) => `/api/game/${id}/export?t=${t}`;

// Steps of a trace, the latest ones kept: playing back and forth asks for each step once.
const kept = new Map();
const MOST_KEPT = 400;

export function step(id, t, layer, head) {
  const address = `/api/trace/${id}/step?${new URLSearchParams({ t, layer, head })}`;
  if (!kept.has(address)) {
    const coming = call(address).then(decodeStep);
    coming.catch(() => kept.delete(address));
    kept.set(address, coming);
    if (kept.size > MOST_KEPT) kept.delete(kept.keys().next().value);
  }
  return kept.get(address);
}

export function bytes(text) {
  return Uint8Array.from(atob(text), (c) => c.charCodeAt(0));
}

const floats = (text) => new Float32Array(bytes(text).buffer);

function decodeStep(data) {
  data.output = floats(data.output ?? "");
  for (const matrix of data.matrices) {
    for (const name of ["weights", "write", "key", "value", "query", "read", "shares"]) matrix[name] = floats(matrix[name]);
  }
  return data;
}
