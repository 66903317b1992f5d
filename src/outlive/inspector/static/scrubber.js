// The scrubber: the size of every state over time, forks, interrupts and runs, and a slider to walk through them.

import { draw, make } from "./dom.js";
import { describe } from "./tree.js";

const HEIGHT = 56;
const MOST_BARS = 240;
const WIDEST = 28;

export class Scrubber {
  constructor(history, choose) {
    this.history = history;
    this.choose = choose;
    this.place = document.querySelector("[data-scrubber]");
    this.drawing = draw("svg", { width: "100%", height: HEIGHT, "aria-hidden": "true" });
    this.pointer = draw("rect", { class: "pointer", y: 0, width: 2, height: HEIGHT });
    this.slider = make("input", { type: "range", min: 1, step: 1, "aria-label": "Checkpoint" });
    this.slider.addEventListener("input", () => this.choose(this.row(Number(this.slider.value))));
    this.place.append(this.button("Older", "◀", -1), make("div", { class: "track" }, this.drawing, this.slider), this.button("Newer", "▶", 1));
    this.where = make("output", { class: "muted" });
    this.place.append(this.where);
  }

  button(label, sign, step) {
    const button = make("button", { type: "button", class: "quiet", "aria-label": label }, sign);
    button.addEventListener("click", () => {
      const row = this.row(Number(this.slider.value) + step);
      if (row) this.choose(row);
    });
    return button;
  }

  /** Return the checkpoint at a position, counted from the oldest. */
  row(position) {
    return this.history.rows[this.history.rows.length - position];
  }

  draw() {
    const rows = this.history.rows;
    this.place.hidden = rows.length < 2;
    this.slider.max = rows.length;
    const room = this.place.querySelector(".track").clientWidth;
    const bars = Math.min(MOST_BARS, rows.length);
    const most = Math.sqrt(rows.reduce((largest, row) => Math.max(largest, row.bytes), 1));
    const width = 100 / bars;
    const parts = [];
    for (let bar = 0; bar < bars; bar += 1) {
      // Positions count from the oldest; a bar stands for several checkpoints when there are many.
      const from = Math.floor((bar * rows.length) / bars);
      const some = rows.slice(rows.length - Math.max(from + 1, Math.floor(((bar + 1) * rows.length) / bars)), rows.length - from);
      const bytes = Math.max(...some.map((row) => row.bytes));
      const height = Math.max(3, (Math.sqrt(bytes) / most) * (HEIGHT - 14));
      const kind = some.some((row) => row.asks) ? "asks" : some.some((row) => this.history.isFork(row)) ? "fork" : some.some((row) => row.lane) ? "branch" : "";
      const x = `${(bar + 0.5) * width}%`;
      parts.push(draw("line", { class: `size ${kind}`, x1: x, x2: x, y1: HEIGHT - 8 - height, y2: HEIGHT - 8, "stroke-width": Math.min(WIDEST, (room / bars) * 0.75) }));
      if (some.some((row) => row.run)) parts.push(draw("rect", { class: "run", x: `${bar * width}%`, width: `${width}%`, y: HEIGHT - 5, height: 3 }));
    }
    this.drawing.replaceChildren(...parts, this.pointer);
  }

  select(row) {
    const position = this.history.rows.length - row.at;
    this.slider.value = position;
    this.slider.setAttribute("aria-valuetext", describe(row, this.history));
    this.pointer.setAttribute("x", `${((position - 0.5) / this.history.rows.length) * 100}%`);
    this.where.textContent = `${position.toLocaleString("en")} of ${this.history.rows.length.toLocaleString("en")}`;
  }
}
