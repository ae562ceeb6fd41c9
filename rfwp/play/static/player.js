// The player's bar and keys: they move the view that is shown, a text or a game.

import { find } from "./page.js";

const ICONS = { play: "M4 2.5v11L13 8z", pause: "M3.5 2.5h3v11h-3zM9.5 2.5h3v11h-3z" };

// A view has: first, last (steps), now, pace (ms), seek(t), advance() -> whether it goes on.
export class Player {
  constructor() {
    this.view = null;
    this.timer = 0;
    this.playing = false;
    find("slider").addEventListener("input", () => this.seek(Number(find("slider").value)));
    const jumps = { first: () => this.view.first, back: () => this.view.now - 1, last: () => this.view.last };
    for (const [id, where] of Object.entries(jumps)) find(id).addEventListener("click", () => this.seek(where()));
    find("next").addEventListener("click", () => this.advance());
    find("play").addEventListener("click", () => this.toggle());
    document.addEventListener("keydown", (event) => this.onKey(event));
  }

  seek(t) {
    this.view?.seek(t);
  }

  advance() {
    return this.view?.advance();
  }

  // where the view is; `text` says it in words
  update(where, text) {
    const { first, last, now } = this.view;
    Object.assign(find("slider"), { min: first, max: last, value: now });
    find("slider").setAttribute("aria-valuetext", text);
    find("where").textContent = where;
  }

  stop() {
    clearTimeout(this.timer);
    this.playing = false;
    this.look("play", "Play");
  }

  toggle() {
    if (this.playing) return this.stop();
    if (!this.view) return undefined;
    this.view.rewind();
    this.playing = true;
    this.look("pause", "Pause");
    return this.tick();
  }

  // the next step begins when the last one is there and its time is over
  tick(spent = 0) {
    this.timer = setTimeout(async () => {
      const begun = performance.now();
      const on = await this.advance();
      if (!this.playing) return;
      if (on) this.tick(performance.now() - begun);
      else this.stop();
    }, Math.max(0, this.view.pace - spent));
  }

  look(icon, label) {
    find("play").querySelector("path").setAttribute("d", ICONS[icon]);
    find("play").setAttribute("aria-label", label);
  }

  onKey(event) {
    const keys = {
      ArrowLeft: () => this.seek(this.view.now - 1),
      ArrowRight: () => this.advance(),
      Home: () => this.seek(this.view.first),
      End: () => this.seek(this.view.last),
      " ": () => this.toggle(),
    };
    if (event.ctrlKey || event.metaKey || event.altKey || !this.view || !(event.key in keys)) return;
    const target = event.target;
    if (target.closest("textarea, input, select")) return;
    // space presses the button that has the focus; a token is no such button
    if (event.key === " " && target.closest("button, a") && !target.closest(".chip")) return;
    event.preventDefault();
    keys[event.key]();
  }
}
