// What the page says about texts: the tasks, what is true at a step, what was found.

import { make } from "./page.js";

const MOST_NAMED = 14;

export const HELP = {
  "code-execution": {
    size: "statements",
    task: "A program of assignments, ++, −−, if and print. At the end of each print the model has to say the value; everywhere else it has to stay silent (·).",
    tape: "",
  },
  listops: {
    size: "levels",
    task: "Nested lists of MIN, MAX and FIRST, read once from left to right. At the last bracket the model has to say the value of the whole list.",
    tape: "The brackets above show the nesting, with the value of each list at its end. Only the last token has an answer.",
  },
  language: {
    task: "Running text, words between spaces. The model reads word by word and expects the next one; words that it does not know become <unk> (dotted). Let it go on, and it makes up the rest.",
    tape: "¶ is the end of a line.",
  },
};

export const value = (text, kind = "value") => make("span", kind, text);

// the head that was found, in a sentence
export function sayFound(trace, { t, layer, head, matrix, variable, share, steps }) {
  const part = share > 0.995 ? "all" : `${Math.max(0, Math.round(100 * share))} %`;
  const named = steps.slice(0, MOST_NAMED).map((step) => trace.tokens[step]);
  const place = `Layer ${layer + 1}, head ${head + 1}, ${trace.matrices[matrix].name}`;
  return `${place}: ${part} of what it reads at this print of ${variable} (step ${t + 1}) was written by ${named.join(" ")}${steps.length > MOST_NAMED ? " …" : ""}`;
}

export function truthNow(trace, t) {
  if (trace.kind === "listops") {
    const [depth, , result] = trace.nesting[t];
    return [value(`depth ${depth}`), ...(result === null ? [] : [value(`this list is ${result}`)])];
  }
  const values = Object.entries(trace.variables[t]);
  const earlier = t ? trace.variables[t - 1] : {};
  if (!values.length) return [value("no variable has a value yet", "explain")];
  return values.map(([name, now]) => value(`${name} = ${now}`, earlier[name] === now ? "value" : "value fresh"));
}
