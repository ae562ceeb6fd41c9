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

export const trace = (model, text) =>
  call("/api/trace", {
    method: "POST",
    headers: { "Content-Type": "application/json" },
    body: JSON.stringify({ model, text }),
  });

export const difference = (one, other) => call(`/api/trace/${one}/difference/${other}`);

export const exportAddress = (id, t) => `/api/trace/${id}/export?t=${t}`;

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
  data.output = floats(data.output);
  for (const matrix of data.matrices) {
    for (const name of ["weights", "write", "key", "value", "query", "read", "shares"]) matrix[name] = floats(matrix[name]);
  }
  return data;
}
