// Keys. None of them changes the store.

import { make, root } from "./dom.js";

const PAGES = { n: "/", t: "/threads", r: "/runs", s: "/store" };
const VIEWS = { c: "chat", s: "state", d: "diff", w: "writes", r: "raw" };
const HELP = [
  ["j k", "next and previous row"], ["Enter", "open the row"], ["h l", "older and newer along the branch"], ["[ ]", "older and newer fork"],
  ["c s d w r", "chat, state, diff, writes, raw"], ["m", "mark, to compare another checkpoint with it"], ["f", "follow what is new"],
  ["y", "copy the id"], ["/", "search"], ["g then n t r s", "now, threads, runs, store"], ["?", "these keys"],
];

export function enableKeys(thread, live) {
  let isGoing = false;
  const help = makeHelp();

  const own = {
    "/": () => document.querySelector("[data-search]").focus(),
    "?": () => help.showModal(),
    g: () => { isGoing = true; setTimeout(() => { isGoing = false; }, 1500); },
    j: () => (thread ? thread.move(1) : moveRow(1)),
    k: () => (thread ? thread.move(-1) : moveRow(-1)),
    h: () => thread?.older(),
    l: () => thread?.newer(),
    "[": () => thread?.fork(1),
    "]": () => thread?.fork(-1),
    m: () => thread?.markHere(),
    f: () => live.follow(),
    y: () => document.querySelector("h1 [data-copy]")?.click(),
  };

  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || event.isComposing) return;
    if (event.target.closest("input:not([type=range]), textarea, select, dialog")) return;
    if (isGoing) {
      isGoing = false;
      if (PAGES[event.key]) location.href = root + PAGES[event.key];
      return;
    }
    const view = thread && VIEWS[event.key];
    const act = own[event.key] ?? (view ? () => thread.setView(view) : null);
    if (act) { event.preventDefault(); act(); }
  });

  const button = document.querySelector("[data-keys]");
  button.hidden = false;
  button.addEventListener("click", () => help.showModal());
}

function moveRow(step) {
  const rows = [...document.querySelectorAll("[data-rows] > [data-key]")].filter((row) => row.querySelector("a"));
  if (!rows.length) return;
  const now = rows.findIndex((row) => row.contains(document.activeElement));
  const next = rows[Math.max(0, Math.min(rows.length - 1, now < 0 ? 0 : now + step))];
  next.querySelector("a").focus();
  next.scrollIntoView({ block: "nearest" });
}

function makeHelp() {
  const close = make("button", { type: "button", class: "primary" }, "Close");
  const list = make("dl", {}, ...HELP.flatMap(([keys, text]) => [
    make("dt", {}, ...keys.split(" ").flatMap((key) => (key === "then" ? [" then "] : [make("kbd", {}, key), " "]))), make("dd", {}, text)]));
  const help = make("dialog", { class: "keys", "aria-labelledby": "keys-title" }, make("h2", { id: "keys-title" }, "Keys"), list,
    make("p", { class: "muted" }, "No key changes the store."), close);
  close.addEventListener("click", () => help.close());
  document.body.append(help);
  return help;
}
