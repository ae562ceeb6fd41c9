// Small things that every part of the page needs.

export const find = (id) => document.getElementById(id);

export const percent = (x) => `${Math.round(100 * x)} %`;

export function make(tag, kind, text) {
  const element = document.createElement(tag);
  if (kind) element.className = kind;
  if (text !== undefined) element.textContent = text;
  return element;
}

export function option(value, text) {
  const element = make("option", "", text);
  element.value = value;
  return element;
}

export const describe = (canvas, text) => canvas.setAttribute("aria-label", text);

// parts of the page that only some kinds of models need
export function showParts(kind) {
  for (const part of document.querySelectorAll("[data-for]")) part.hidden = !part.dataset.for.split(" ").includes(kind);
}

// a choice of layers, one of them pressed
export function fillLayers(count, chosen, onChoose) {
  const button = (layer) => {
    const element = make("button", "", `${layer + 1}`);
    element.type = "button";
    element.setAttribute("aria-label", `Layer ${layer + 1}`);
    element.setAttribute("aria-pressed", String(layer === chosen));
    element.addEventListener("click", () => onChoose(layer));
    return element;
  };
  find("layers").replaceChildren(...Array.from({ length: count }, (_, layer) => button(layer)));
}

export function pressLayer(chosen) {
  [...find("layers").children].forEach((button, layer) => button.setAttribute("aria-pressed", String(layer === chosen)));
}
