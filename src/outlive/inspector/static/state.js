// A state unfolds in place: one level at a time, read when it is opened.

import { formatSize, make, readJson, root } from "./dom.js";

const STEP = 18; // pixels for each level

/** Let the rows of a state unfold. `query` names the thread and the checkpoint. */
export function enableUnfolding(place, query) {
  for (const row of place.querySelectorAll("table.state tr[data-opens]")) addToggle(row, query, 0);
}

function addToggle(row, query, level) {
  const toggle = make("button", { type: "button", class: "toggle", "aria-expanded": "false", "aria-label": "Unfold" }, "▸");
  toggle.addEventListener("click", () => (toggle.getAttribute("aria-expanded") === "true" ? fold(row, toggle) : unfold(row, toggle, query, level)));
  row.querySelector("th").prepend(toggle);
}

function fold(row, toggle) {
  toggle.setAttribute("aria-expanded", "false");
  toggle.textContent = "▸";
  row.inner.forEach((inner) => { const own = inner.querySelector(".toggle[aria-expanded=true]"); if (own) fold(inner, own); inner.remove(); });
}

async function unfold(row, toggle, query, level) {
  toggle.setAttribute("aria-expanded", "true");
  toggle.textContent = "▾";
  row.inner = row.inner ?? (await readLevel(row, query, level + 1, 0));
  row.after(...row.inner);
}

async function readLevel(row, query, level, from) {
  try {
    const answer = await readJson(`${root}/state.json?${query}&path=${row.dataset.path}&from=${from}`);
    if (!answer.is_container) return [wholeText(answer, level)];
    const rows = answer.children.map((child) => childRow(child, query, level));
    if (answer.more !== null) rows.push(moreRow(row, query, level, answer.more));
    return rows;
  } catch {
    return [cells(level, "", make("span", { class: "bad" }, "could not be read"))];
  }
}

function cells(level, name, value, type = "", size = "") {
  const head = make("th", { scope: "row" }, name);
  head.style.paddingLeft = `${14 + level * STEP}px`;
  return make("tr", { class: "inner" }, head, make("td", { class: "value" }, value), make("td", { class: "muted opt" }, type), make("td", { class: "num muted" }, size));
}

function childRow(child, query, level) {
  const type = child.count === null ? child.type : `${child.type} ${child.count.toLocaleString("en")}`;
  const row = cells(level, child.shown, make("code", {}, child.preview), type, formatSize(child.bytes));
  row.dataset.path = encodeURIComponent(child.path);
  if (child.opens) addToggle(row, query, level);
  return row;
}

function wholeText(answer, level) {
  return cells(level, "", make("pre", {}, answer.shown + (answer.is_cut ? "\n…" : "")));
}

function moreRow(row, query, level, from) {
  const button = make("button", { type: "button" }, `more, from ${from.toLocaleString("en")}`);
  const own = cells(level, "", button);
  button.addEventListener("click", async () => {
    const rows = await readLevel(row, query, level, from);
    row.inner = row.inner.flatMap((inner) => (inner === own ? rows : [inner]));
    own.replaceWith(...rows);
  });
  return own;
}
