// Elements are made with createElement and textContent only: what a store holds is text, never markup.

const SVG = "http://www.w3.org/2000/svg";
const DRAWN = new Set(["svg", "g", "path", "circle", "rect", "line", "text", "title", "defs", "pattern"]);
const PLAIN = new Set([
  "a", "b", "bdi", "br", "button", "code", "dd", "del", "details", "div", "dl", "dt", "fieldset", "form", "h1", "h2", "h3", "input",
  "ins", "kbd", "label", "legend", "li", "main", "mark", "nav", "ol", "option", "p", "pre", "progress", "section", "select", "small",
  "span", "strong", "summary", "table", "tbody", "td", "textarea", "th", "thead", "time", "tr", "ul",
]);
const ATTRIBUTES = new Set([
  "action", "checked", "class", "cx", "cy", "d", "datetime", "dx", "height", "hidden", "href", "id", "inputmode", "max", "method", "name",
  "open", "patternTransform", "patternUnits", "placeholder", "r", "rel", "required", "role", "rows", "rx", "scope", "selected", "size",
  "tabindex", "text-anchor", "title", "transform", "type", "value", "viewBox", "width", "x", "x1", "x2", "y", "y1", "y2",
]);

export const root = document.body.dataset.root;

function fill(element, attributes, children) {
  for (const [key, value] of Object.entries(attributes)) {
    if (value !== null && value !== undefined && value !== false) element.setAttribute(key, value === true ? "" : value);
  }
  element.append(...children);
  return element;
}

/** Make an element with attributes and children, which may be texts. */
export function make(name, attributes = {}, ...children) {
  return fill(document.createElement(name), attributes, children);
}

/** Make an element of a drawing. */
export function draw(name, attributes = {}, ...children) {
  return fill(document.createElementNS(SVG, name), attributes, children);
}

/** Read a page of this server as data. Nothing of it runs, and only known elements and attributes are made again from it. */
export function read(address) {
  return new Promise((resolve, reject) => {
    const request = new XMLHttpRequest();
    request.open("GET", address);
    request.responseType = "document";
    request.onload = () => (request.status < 400 && request.response ? resolve(request.response) : reject(new Error(String(request.status))));
    request.onerror = () => reject(new Error("no answer"));
    request.send();
  });
}

export async function readJson(address) {
  const answer = await fetch(address, { headers: { accept: "application/json" } });
  if (!answer.ok) throw new Error(String(answer.status));
  return answer.json();
}

function isOwn(value) {
  return new URL(value, location.href).origin === location.origin;
}

/** Make again what was read: a copy of an element with all that is in it. */
export function rebuild(node) {
  if (node.nodeType === Node.TEXT_NODE) return document.createTextNode(node.data);
  const name = node.nodeType === Node.ELEMENT_NODE ? node.localName : "";
  const isDrawn = node.namespaceURI === SVG && DRAWN.has(name);
  if (!isDrawn && !PLAIN.has(name)) return document.createTextNode("");
  const attributes = {};
  for (const { name: key, value } of node.attributes) {
    const isKnown = ATTRIBUTES.has(key) || key.startsWith("data-") || key.startsWith("aria-");
    if (isKnown && (!["href", "action"].includes(key) || isOwn(value))) attributes[key] = value;
  }
  const children = [...node.childNodes].map(rebuild);
  return isDrawn ? draw(name, attributes, ...children) : make(name, attributes, ...children);
}

function keyOf(node) {
  return node.nodeType === Node.ELEMENT_NODE ? node.dataset.key ?? (node.id || node.getAttribute("aria-labelledby")) : null;
}

function isAlike(one, other) {
  return one?.nodeName === other.nodeName && keyOf(one) === keyOf(other);
}

/** Change an element into what was made again. What is in both stays: its focus, its selection, its place, what is unfolded. */
export function morph(own, fresh) {
  if (own.isEqualNode(fresh)) return;
  if (own.nodeType === Node.TEXT_NODE) { own.data = fresh.data; return; }
  for (const { name } of [...own.attributes]) if (!fresh.hasAttribute(name) && name !== "open") own.removeAttribute(name);
  for (const { name, value } of fresh.attributes) if (own.getAttribute(name) !== value) own.setAttribute(name, value);
  let at = own.firstChild;
  for (const child of [...fresh.childNodes]) {
    let match = at;
    if (keyOf(child)) while (match && !isAlike(match, child)) match = match.nextSibling;
    if (!match || !isAlike(match, child)) { own.insertBefore(child, at); continue; }
    while (at !== match) { const gone = at; at = at.nextSibling; gone.remove(); }
    morph(match, child);
    at = match.nextSibling;
  }
  while (at) { const gone = at; at = at.nextSibling; gone.remove(); }
}

// Text as the pages of the server have it

const UNITS = ["B", "kB", "MB", "GB", "TB"];

export function formatSize(bytes) {
  let amount = bytes;
  let unit = 0;
  while (Math.abs(amount) >= 999.5 && unit < UNITS.length - 1) { amount /= 1000; unit += 1; }
  return unit ? `${amount.toFixed(1)} ${UNITS[unit]}` : `${bytes} B`;
}

const SPANS = [[31536000, "y"], [86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];

export function formatAge(milliseconds) {
  const seconds = (Date.now() - milliseconds) / 1000;
  if (Math.abs(seconds) < 1) return "just now";
  const [length, unit] = SPANS.find(([span]) => Math.abs(seconds) >= span * 0.995) ?? SPANS.at(-1);
  const text = `${Math.round(Math.abs(seconds) / length)} ${unit}`;
  return seconds > 0 ? `${text} ago` : `in ${text}`;
}

/** Write out what could deceive a reader: control characters, direction marks, invisible characters. */
export function harmless(text) {
  return text.replace(/[\p{Cc}\p{Cf}\p{Cs}\u2028\u2029\u115f\u1160\u3164\uffa0\ufe00-\ufe0f]/gu, (char) => {
    const code = char.codePointAt(0).toString(16);
    return code.length > 4 ? `\\U${code.padStart(8, "0")}` : `\\u${code.padStart(4, "0")}`;
  });
}

/** Show the buttons that copy, which need scripts. */
export function enableCopying(place) {
  if (!navigator.clipboard) return;
  for (const button of place.querySelectorAll("[data-copy]")) button.hidden = false;
}

document.addEventListener("click", async (event) => {
  const button = event.target.closest("[data-copy]");
  if (!button) return;
  await navigator.clipboard.writeText(button.dataset.copy);
  button.textContent = "copied";
  setTimeout(() => { button.textContent = "copy"; }, 1500);
});
