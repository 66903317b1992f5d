// The tree of a thread: rows of all its checkpoints, of which only those in sight are in the page.

import { draw, formatAge, formatSize, harmless, make, readJson, root } from "./dom.js";

const HEIGHT = 44; // of a row, as in the style sheet
const LANE = 14;
const MOST_LANES = 8; // that are drawn side by side
const MOST_BRANCHES = 64; // that are told apart: a thread may have thousands from one checkpoint
const AROUND = 24; // rows above and below those in sight
const MOST_BATCHES = 60; // of 1,000 checkpoints

/** All checkpoints of a namespace that were read so far, the newest first. */
export class History {
  constructor(place) {
    this.place = place;
    this.rows = [];
    this.byId = new Map();
    this.isWhole = false;
  }

  /** Read everything, in batches; `tell` is called after each. */
  async load(tell) {
    let next = null;
    for (let batch = 0; batch < MOST_BATCHES; batch += 1) {
      const answer = await this.read(next);
      this.add(answer, this.rows.length);
      next = answer.next;
      this.isWhole = next === null;
      tell();
      if (this.isWhole) return;
    }
  }

  read(before) {
    const query = before === null ? "" : `&before=${encodeURIComponent(before)}`;
    return readJson(`${root}/tree.json?${this.place}${query}`);
  }

  /** Read what was saved since; return how many checkpoints are new. */
  async refresh() {
    const answer = await this.read(null);
    const fresh = answer.rows.filter(([id]) => !this.byId.has(id)).length;
    if (fresh && fresh < answer.rows.length) this.add({ ...answer, rows: answer.rows.slice(0, fresh) }, 0);
    else if (fresh) { this.rows = []; await this.load(() => {}); } // more than one batch: begin again
    return fresh;
  }

  add(answer, at) {
    const fresh = answer.rows.map(([id, parent, seq, source, step, run, time, bytes, added, asks]) =>
      ({ id, parent, seq, source, step, run: answer.runs[run], time, bytes, added, asks, children: [] }));
    this.rows.splice(at, 0, ...fresh);
    this.link();
  }

  /** Find the children of every row, and its lane: the newest branch is on the left. */
  link() {
    this.byId = new Map(this.rows.map((row) => [row.id, row]));
    this.rows.forEach((row, at) => { row.at = at; row.children = []; });
    for (const row of this.rows) this.byId.get(row.parent)?.children.push(row);
    const lanes = [];
    for (const row of this.rows) {
      row.above = lanes.slice();
      const own = lanes.flatMap((id, at) => (id === row.id ? [at] : []));
      const free = lanes.indexOf(null);
      row.lane = own.length ? own[0] : free >= 0 ? free : Math.min(lanes.length, MOST_BRANCHES - 1);
      row.merging = own.slice(1);
      for (const at of row.merging) lanes[at] = null;
      row.isCut = row.parent !== null && !this.byId.has(row.parent);
      lanes[row.lane] = row.parent !== null && !row.isCut ? row.parent : null;
      while (lanes.length && lanes.at(-1) === null) lanes.pop();
      row.below = lanes.slice();
    }
  }

  isFork(row) {
    return row.children.length > 1;
  }
}

function drawLanes(row) {
  const shown = Math.min(MOST_LANES, Math.max(row.above.length, row.below.length, row.lane + 1));
  const x = (lane) => 11 + Math.min(lane, MOST_LANES - 1) * LANE;
  const own = x(row.lane);
  const parts = [];
  row.above.forEach((id, lane) => {
    if (id === null) return;
    if (row.merging.includes(lane)) parts.push(draw("path", { d: `M${x(lane)} 0C${x(lane)} 18 ${own} 8 ${own} 22` }));
    else if (lane === row.lane) parts.push(draw("path", { d: `M${own} 0V22` }));
    else if (row.below[lane]) parts.push(draw("path", { d: `M${x(lane)} 0V${HEIGHT}` }));
  });
  if (row.below[row.lane]) parts.push(draw("path", { d: `M${own} 22V${HEIGHT}` }));
  else if (row.isCut) parts.push(draw("path", { d: `M${own} 22V${HEIGHT}`, class: "cut" }));
  parts.push(draw("circle", { cx: own, cy: 22, r: 5 }));
  return draw("svg", { class: "lanes", width: 8 + shown * LANE, height: HEIGHT, "aria-hidden": "true" }, ...parts);
}

/** The window on the rows. */
export class Tree {
  constructor(history, address, choose) {
    this.history = history;
    this.address = address;
    this.choose = choose;
    this.frame = document.querySelector("[data-window]");
    this.list = document.querySelector("[data-tree]");
    this.items = new Map();
    this.current = null;
    this.marked = null;
    this.isOwn = false;
    this.frame.addEventListener("scroll", () => this.draw(), { passive: true });
    addEventListener("resize", () => this.draw());
  }

  /** Take over from the rows that the server sent. */
  takeOver() {
    const wanted = this.frame.scrollTop;
    this.isOwn = true;
    this.list.replaceChildren();
    this.list.classList.add("windowed");
    document.querySelector("[data-older]")?.remove();
    this.items.clear();
    this.resize();
    this.frame.scrollTop = wanted;
    this.draw();
  }

  resize() {
    this.list.style.height = `${this.history.rows.length * HEIGHT}px`;
  }

  /** Show rows that came on top; what is in sight stays where it is. */
  push(count) {
    this.resize();
    this.redraw();
    this.frame.scrollTop += count * HEIGHT;
  }

  redraw() {
    const hadFocus = this.hasFocus;
    this.items.forEach((item) => item.remove());
    this.items.clear();
    this.draw();
    if (hadFocus) this.items.get(this.current)?.querySelector("a").focus({ preventScroll: true });
  }

  draw() {
    if (!this.isOwn) return;
    const rows = this.history.rows;
    const first = Math.max(0, Math.floor(this.frame.scrollTop / HEIGHT) - AROUND);
    const last = Math.min(rows.length, Math.ceil((this.frame.scrollTop + this.frame.clientHeight) / HEIGHT) + AROUND);
    const wanted = new Set(rows.slice(first, last));
    if (this.current) wanted.add(this.current); // it may have the focus
    for (const [row, item] of this.items) {
      if (!wanted.has(row)) { item.remove(); this.items.delete(row); }
    }
    for (const row of [...wanted].sort((one, other) => one.at - other.at)) {
      if (!this.items.has(row)) {
        const item = this.make(row);
        this.items.set(row, item);
        const after = [...this.items].filter(([other]) => other.at > row.at).sort(([one], [other]) => one.at - other.at)[0];
        this.list.insertBefore(item, after ? after[1] : null);
      }
    }
  }

  make(row) {
    const isOn = row === this.current;
    const what = make("span", { class: "what" },
      make("span", { class: "seq" }, `@${row.seq}`), " ", make("span", { class: `source ${row.source}` }, row.source));
    if (row.step !== null) what.append(" ", make("span", { class: "muted" }, `step ${row.step}`));
    if (row.lane) what.append(make("span", { class: "hidden" }, " on a branch"));
    if (row.asks) what.append(" ", make("span", { class: "standing waiting" }, "asks"));
    if (row === this.marked) what.append(" ", make("span", { class: "pill new" }, "marked"));
    const time = make("time", { datetime: new Date(row.time).toISOString(), title: new Date(row.time).toLocaleString() }, formatAge(row.time));
    what.append(make("span", { class: "sub muted" }, time, ` · ${formatSize(row.bytes)}, ${formatSize(row.added)} new`));
    const link = make("a", { href: this.address(row), "aria-current": isOn && "true" }, drawLanes(row), what);
    link.addEventListener("click", (event) => {
      if (event.ctrlKey || event.metaKey || event.shiftKey) return;
      event.preventDefault();
      this.choose(row);
    });
    const item = make("li", { class: isOn ? "on" : null, "aria-posinset": row.at + 1, "aria-setsize": this.history.rows.length }, link);
    item.style.top = `${row.at * HEIGHT}px`;
    return item;
  }

  /** Show a row as the chosen one. */
  select(row, { hasFocus = false } = {}) {
    const before = this.current;
    this.current = row;
    for (const changed of [before, row]) {
      const item = this.items.get(changed);
      if (item) { const again = this.make(changed); item.replaceWith(again); this.items.set(changed, again); }
    }
    this.reveal(row);
    this.draw();
    if (before) this.items.get(row)?.scrollIntoView({ block: "nearest" }); // a choice of the reader
    if (hasFocus) this.items.get(row)?.querySelector("a").focus({ preventScroll: true });
  }

  reveal(row) {
    const top = row.at * HEIGHT;
    if (top < this.frame.scrollTop) this.frame.scrollTop = top;
    else if (top + HEIGHT > this.frame.scrollTop + this.frame.clientHeight) this.frame.scrollTop = top + HEIGHT - this.frame.clientHeight;
  }

  get hasFocus() {
    return this.list.contains(document.activeElement);
  }
}

/** Return a text for a screen reader that says which checkpoint it is. */
export function describe(row, history) {
  const parts = [`@${row.seq} ${row.source}`, row.step === null ? "" : `step ${row.step}`, formatAge(row.time), formatSize(row.bytes)];
  if (history.isFork(row)) parts.push(`${row.children.length} branches`);
  if (row.asks) parts.push("asks");
  if (row.run) parts.push(`run ${harmless(row.run)}`);
  return parts.filter(Boolean).join(", ");
}
