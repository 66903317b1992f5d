// Live: what changed appears without another page, and nothing that is being read moves.
//
// Rows that are in the page change where they are. A row that is new waits behind a notice, unless the reader follows.

import { enableCopying, make, morph, read, rebuild, root } from "./dom.js";

export class Live {
  constructor(topic, thread) {
    this.topic = topic;
    this.thread = thread;
    this.notice = document.querySelector("[data-notice]");
    this.dot = document.querySelector("[data-dot]");
    this.mark = null;
    this.newer = 0;
    this.isFollowing = false;
    if (!topic) return;
    this.connect();
    // A browser has six connections to a server: a hidden page gives its own back.
    document.addEventListener("visibilitychange", () => (document.hidden ? this.source.close() : this.connect()));
    addEventListener("pagehide", () => this.source.close());
    addEventListener("pageshow", (event) => { if (event.persisted) this.connect(); });
  }

  connect() {
    const here = new URLSearchParams(location.search);
    const wanted = new URLSearchParams({ topic: this.topic });
    for (const name of ["id", "ns", "thread"]) if (here.get(name)) wanted.set(name, here.get(name));
    this.source = new EventSource(`${root}/live?${wanted}`);
    this.source.onopen = () => { this.dot.hidden = false; };
    this.source.onerror = () => { this.dot.hidden = true; };
    this.source.onmessage = (event) => this.hear(JSON.parse(event.data));
  }

  async hear(look) {
    if (look.error) return;
    for (const [name, count] of Object.entries(look.counts ?? {})) {
      const place = document.querySelector(`[data-count="${CSS.escape(name)}"]`);
      if (place) { place.textContent = count; place.closest(".tile").classList.toggle("none", !count); }
    }
    const isFirst = this.mark === null;
    if (this.mark === look.mark) return;
    this.mark = look.mark;
    if (isFirst && this.topic === "thread") return; // its rows are read after the page
    // The first look too: something may have changed since the server made this page.
    if (this.topic === "thread") await this.hearThread();
    else await this.hearPage();
  }

  async hearThread() {
    this.newer += await this.thread.refresh();
    if (this.thread.isFollowing || !this.newer) { this.hide(); return; }
    this.tell(`${this.newer} newer`, () => { this.thread.choose(this.thread.history.rows[0]); this.hide(); });
  }

  async hearPage() {
    const page = await read(location.href);
    if (this.topic === "run" || this.isFollowing) { this.replace(page); return; }
    const fresh = this.update(page);
    if (fresh) this.tell(`${fresh} newer`, () => this.replace(page));
  }

  /** Change rows where they are; return how many rows of the new page are not in this one. */
  update(page) {
    const rows = new Map([...page.querySelectorAll("main [data-key]")].map((row) => [row.dataset.key, row]));
    for (const row of document.querySelectorAll("main [data-key]")) {
      const now = rows.get(row.dataset.key);
      if (now && now.textContent !== row.textContent) morph(row, rebuild(now));
      row.classList.toggle("gone", !now);
      rows.delete(row.dataset.key);
    }
    return rows.size;
  }

  /** Show the new page here; the row at the top of the screen stays where it is. */
  replace(page) {
    const main = document.querySelector("main");
    const anchor = [...main.querySelectorAll("[data-key]")].find((row) => row.getBoundingClientRect().top >= 0);
    const top = anchor?.getBoundingClientRect().top;
    morph(main, rebuild(page.querySelector("main")));
    enableCopying(main);
    if (anchor?.isConnected && scrollY > 0) scrollBy(0, anchor.getBoundingClientRect().top - top);
    this.hide();
  }

  tell(text, act) {
    const show = make("button", { type: "button" }, "Show");
    show.addEventListener("click", act);
    this.notice.replaceChildren(make("span", {}, text), show);
    this.notice.hidden = false;
  }

  hide() {
    this.newer = 0;
    this.notice.hidden = true;
  }

  /** Show what is new at once, from now on; or stop that. */
  follow() {
    if (!this.topic) return;
    this.isFollowing = this.thread ? this.thread.follow() : !this.isFollowing;
    this.dot.textContent = this.isFollowing ? "live, follows" : "live";
    if (!this.notice.hidden && this.isFollowing) this.notice.querySelector("button")?.click();
  }
}
