// What pages do beyond links and forms: copy, keys, and live. Elements are made with createElement and textContent only.
const root = document.body.dataset.root;

/** Make an element with attributes and children, which may be texts. */
function make(name, attributes = {}, ...children) {
  const element = document.createElement(name);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.append(...children);
  return element;
}

// Copy
for (const button of document.querySelectorAll("[data-copy]")) {
  if (!navigator.clipboard) continue;
  button.hidden = false;
  button.addEventListener("click", async () => {
    await navigator.clipboard.writeText(button.dataset.copy);
    button.textContent = "copied";
    setTimeout(() => { button.textContent = "copy"; }, 1500);
  });
}
document.querySelector("[data-back]")?.addEventListener("click", (event) => {
  if (history.length > 1) { event.preventDefault(); history.back(); }
});

// Keys: none of them changes the store.
const PAGES = { n: "/", t: "/threads", r: "/runs", s: "/store" };
const VIEWS = { c: "chat", s: "state", d: "diff", w: "writes", r: "raw" };
let isGoing = false;

function rows() {
  return [...document.querySelectorAll("[data-tree] > li, [data-list] tbody tr")];
}

function move(step) {
  const all = rows();
  if (!all.length) return;
  const now = all.findIndex((row) => row.classList.contains("on"));
  const next = all[Math.max(0, Math.min(all.length - 1, now < 0 ? 0 : now + step))];
  const link = next.querySelector("a");
  if (next.parentElement.matches("[data-tree]")) {
    location.href = link.href;
    return;
  }
  all.forEach((row) => row.classList.toggle("on", row === next));
  link.focus();
}

document.addEventListener("keydown", (event) => {
  if (event.ctrlKey || event.metaKey || event.altKey || event.target.closest("input, textarea, select")) return;
  if (isGoing) {
    isGoing = false;
    if (PAGES[event.key]) location.href = root + PAGES[event.key];
    return;
  }
  const view = document.querySelector(`[data-view="${CSS.escape(VIEWS[event.key] ?? "")}"]`);
  if (event.key === "g") isGoing = true;
  else if (event.key === "/") { event.preventDefault(); document.querySelector("[data-search]").focus(); }
  else if (event.key === "j") move(1);
  else if (event.key === "k") move(-1);
  else if (event.key === "m") document.querySelector("[data-mark]")?.click();
  else if (view) view.click();
});
document.querySelector("[data-tree] .on")?.scrollIntoView({ block: "nearest" });

// Live: say that something changed, and never move what is being read.
const topic = document.body.dataset.live;
const notice = document.querySelector("[data-notice]");
let first = null;
let source = null;

function show(look) {
  if (look.error) return;
  for (const [name, count] of Object.entries(look.counts ?? {})) {
    const place = document.querySelector(`[data-count="${CSS.escape(name)}"]`);
    if (place) place.textContent = count;
  }
  const mark = look.mark ?? look.head;
  if (first === null) { first = { mark, seq: look.seq }; return; }
  if (mark === first.mark) { notice.hidden = true; return; }
  const newer = look.seq && first.seq ? `${look.seq - first.seq} newer ` : "Changed ";
  const address = new URL(location.href);
  if (topic === "thread") { address.searchParams.delete("at"); address.searchParams.delete("before"); }
  notice.replaceChildren(newer, make("a", { href: address.href }, "show"));
  notice.hidden = false;
}

function connect() {
  const here = new URLSearchParams(location.search);
  const wanted = new URLSearchParams({ topic, id: here.get("id") ?? "", ns: here.get("ns") ?? "", thread: here.get("thread") ?? "" });
  source = new EventSource(`${root}/live?${wanted}`);
  source.onopen = () => { document.querySelector("[data-dot]").hidden = false; };
  source.onerror = () => { document.querySelector("[data-dot]").hidden = true; };
  source.onmessage = (event) => show(JSON.parse(event.data));
}

if (topic) {
  connect();
  // A browser has six connections to a server: a hidden page gives its own back.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) source.close();
    else connect();
  });
  addEventListener("pagehide", () => source.close());
}
