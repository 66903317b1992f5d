// The page of a thread: choosing a checkpoint changes the right side and the address, without another page.

import { enableCopying, read, rebuild, root } from "./dom.js";
import { Scrubber } from "./scrubber.js";
import { enableUnfolding } from "./state.js";
import { History, Tree } from "./tree.js";

const WAIT_MS = 60; // while the slider moves

export class ThreadPage {
  constructor(place) {
    this.place = place;
    this.history = new History(place.dataset.thread);
    this.tree = new Tree(this.history, (row) => this.address({ at: row.id }), (row) => this.choose(row, { hasFocus: true }));
    this.scrubber = new Scrubber(this.history, (row) => this.choose(row));
    this.loading = document.querySelector("[data-loading]");
    this.request = 0;
    this.wanted = null;
    this.isFollowing = false;
    this.prepare();
    place.addEventListener("click", (event) => this.open(event));
    addEventListener("popstate", () => this.show(location.href, { isNew: false }));
  }

  get detail() { return document.querySelector("[data-detail]"); }

  get params() { return new URL(location.href).searchParams; }

  /** Return the address of this page with other parameters; one that is null is left out. */
  address(changes) {
    const params = this.params;
    for (const name of ["before", ...("at" in changes ? ["path", "from", "load"] : [])]) params.delete(name);
    for (const [name, value] of Object.entries(changes)) {
      if (value === null) params.delete(name);
      else params.set(name, value);
    }
    return `${location.pathname}?${params}`;
  }

  async start() {
    await this.history.load(() => {
      const { rows, isWhole } = this.history;
      this.loading.textContent = isWhole ? rows.length.toLocaleString("en") : `${rows.length.toLocaleString("en")} so far`;
      if (!this.tree.isOwn) this.tree.takeOver();
      else { this.tree.resize(); this.tree.redraw(); }
      this.mark();
      this.scrubber.draw();
      this.point();
    });
  }

  /** Show in the tree and the scrubber which checkpoint the right side has. */
  point(options) {
    const row = this.history.byId.get(decodeURIComponent(this.detail?.dataset.at ?? ""));
    if (row) { this.tree.select(row, options); this.scrubber.select(row); }
  }

  get row() { return this.tree.current; }

  mark() {
    const marked = this.history.byId.get(this.params.get("with") ?? "") ?? null;
    if (marked !== this.tree.marked) { this.tree.marked = marked; this.tree.redraw(); }
  }

  choose(row, { hasFocus = this.tree.hasFocus } = {}) {
    if (!row) return;
    this.isFollowing = row.at === 0 && this.isFollowing;
    this.tree.select(row, { hasFocus });
    this.scrubber.select(row);
    clearTimeout(this.timer);
    this.request += 1; // an answer that is on its way would choose its own checkpoint again
    this.timer = setTimeout(() => this.show(this.address({ at: row.id, view: this.view })), WAIT_MS);
  }

  /** The view that was asked for last; the right side may still show another one. */
  get view() {
    const view = this.wanted ?? this.detail?.dataset.viewNow;
    return ["large", "unreadable"].includes(view) ? null : view;
  }

  setView(view) {
    if (!this.row || !this.detail.querySelector(`[data-view="${CSS.escape(view)}"]`)) return;
    this.wanted = view;
    this.show(this.address({ at: this.row.id, view }));
  }

  markHere() {
    if (this.row) this.show(this.address({ at: this.row.id, with: this.row.id, view: this.view }));
  }

  /** Links inside the right side that lead to this thread change only that side. */
  open(event) {
    const link = event.target.closest("a[href]");
    if (!link || event.ctrlKey || event.metaKey || event.shiftKey || event.defaultPrevented) return;
    if (!this.detail?.contains(link)) return;
    const address = new URL(link.href);
    const here = new URL(location.href);
    const isSame = address.pathname === here.pathname && ["id", "ns"].every((name) => (address.searchParams.get(name) ?? "") === (here.searchParams.get(name) ?? ""));
    if (!isSame) return;
    event.preventDefault();
    this.show(link.href);
  }

  async show(href, { isNew = true } = {}) {
    clearTimeout(this.timer);
    const request = (this.request += 1);
    const address = new URL(href, location.href);
    if (isNew) history.pushState(null, "", address);
    this.detail?.setAttribute("aria-busy", "true");
    try {
      const answer = await read(`${root}/detail${address.search}`);
      if (request !== this.request) return; // another one was chosen meanwhile
      const focused = this.describeFocus();
      this.detail.replaceWith(rebuild(answer.querySelector("[data-detail]")));
      this.wanted = null;
      this.prepare();
      this.mark();
      this.point();
      focused?.();
    } catch {
      if (request === this.request) location.assign(address);
    }
  }

  /** Return a function that gives the focus back to the link that had it, when that was on the right side. */
  describeFocus() {
    const own = document.activeElement;
    if (!this.detail.contains(own)) return null;
    const view = own.dataset.view;
    return () => (view ? this.detail.querySelector(`[data-view="${CSS.escape(view)}"]`) : this.detail.querySelector("[data-views] a"))?.focus({ preventScroll: true });
  }

  prepare() {
    if (!this.detail) return;
    enableCopying(this.detail);
    const query = `${this.place.dataset.thread}&at=${this.detail.dataset.at}${this.params.get("load") ? "&load=1" : ""}`;
    enableUnfolding(this.detail, query);
    const command = document.querySelector("[data-command]");
    if (this.detail.dataset.commandLine) {
      command.textContent = this.detail.dataset.commandLine;
      const copy = command.parentElement.querySelector("[data-copy]");
      if (copy) copy.dataset.copy = this.detail.dataset.commandCopy;
    }
    const fork = document.querySelector("[data-fork]");
    if (fork) { const address = new URL(fork.href); address.searchParams.set("at", decodeURIComponent(this.detail.dataset.at)); fork.href = address.href; }
  }

  // Keys

  move(step) { if (this.row) this.choose(this.history.rows[this.row.at + step]); }

  older() { this.choose(this.history.byId.get(this.row?.parent)); }

  newer() { this.choose(this.row?.children[0]); }

  fork(step) {
    const rows = this.history.rows;
    for (let at = (this.row?.at ?? 0) + step; at >= 0 && at < rows.length; at += step) {
      if (this.history.isFork(rows[at])) { this.choose(rows[at]); return; }
    }
  }

  /** Choose the newest checkpoint now, and whenever there is a newer one. */
  follow() {
    this.isFollowing = !this.isFollowing;
    if (this.isFollowing) this.choose(this.history.rows[0]);
    return this.isFollowing;
  }

  /** Show what was saved since; return how many checkpoints are newer than the chosen one. */
  async refresh() {
    const fresh = await this.history.refresh();
    if (!fresh) return 0;
    this.tree.push(fresh);
    this.scrubber.draw();
    this.loading.textContent = this.history.rows.length.toLocaleString("en");
    if (this.isFollowing) { this.choose(this.history.rows[0]); return 0; }
    this.point();
    return fresh;
  }
}
