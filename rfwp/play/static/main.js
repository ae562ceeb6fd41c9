// The page: its state, which models there are, and the view that shows them.

import { readAddress } from "./address.js";
import * as api from "./api.js";
import { Game } from "./game.js";
import { onSchemeChange } from "./heat.js";
import { find, make, showParts } from "./page.js";
import { save } from "./picture.js";
import { Player } from "./player.js";
import { Reading } from "./reading.js";

const NAMES = { "code-execution": "Code execution", listops: "ListOps", language: "Language model", agent: "Agent" };

const page = {
  state: readAddress(),
  known: { models: [], limits: {}, examples: {} },
  player: new Player(),
  model: (name) => page.known.models.find((one) => one.name === name),
  kind: () => page.model(page.state.a).kind,
};
const views = { text: new Reading(page), game: new Game(page) };

function kindButton(name) {
  const button = make("button", "", NAMES[name]);
  button.type = "button";
  button.setAttribute("aria-pressed", String(name === page.kind()));
  button.addEventListener("click", () => {
    if (name === page.kind()) return;
    Object.assign(page.state, { a: page.known.models.find((one) => one.kind === name).name, b: "", text: "", t: 0, context: 0 });
    page.state.edits.clear();
    enter();
  });
  return button;
}

async function enter() {
  const { state, known, model, kind } = page;
  if (!model(state.a)) state.a = known.models[0].name;
  if (!model(state.b) || model(state.b).kind !== kind() || state.b === state.a) state.b = "";
  const kinds = [...new Set(known.models.map((one) => one.kind))];
  find("kinds").hidden = kinds.length < 2;
  find("kinds").replaceChildren(...kinds.map(kindButton));
  showParts(kind());
  page.player.stop();
  page.player.view?.leave();
  page.player.view = views[kind() === "agent" ? "game" : "text"];
  await page.player.view.enter();
}

function connect() {
  const name = (ending) => `rfwp-step-${page.state.t + 1}.${ending}`;
  find("png").addEventListener("click", () => save(name("png"), page.player.view.picture().toDataURL("image/png")));
  find("json").addEventListener("click", () => save(name("json"), page.player.view.exportAddress()));
  find("link").addEventListener("click", async () => {
    await navigator.clipboard.writeText(location.href).catch(() => {});
    find("said").textContent = "copied";
  });
  onSchemeChange(() => page.player.view.show());
  // the address belongs to the state: a link to a part of the page leaves it alone
  for (const link of document.querySelectorAll("a[href^='#']")) {
    link.addEventListener("click", (event) => {
      event.preventDefault();
      find(link.hash.slice(1)).focus();
    });
  }
  addEventListener("hashchange", () => {
    Object.assign(page.state, readAddress());
    enter();
  });
}

try {
  page.known = await api.models();
  connect();
  await enter();
  document.body.dataset.ready = "yes";
} catch (error) {
  find("message").textContent = error.message;
}
