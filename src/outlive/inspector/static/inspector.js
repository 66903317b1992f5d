// What pages do beyond links and forms.

import { enableCopying, read, rebuild } from "./dom.js";
import { enableKeys } from "./keys.js";
import { Live } from "./live.js";
import { ThreadPage } from "./thread.js";

enableCopying(document);
document.querySelector("[data-back]")?.addEventListener("click", (event) => {
  if (history.length > 1) { event.preventDefault(); history.back(); }
});

const place = document.querySelector("[data-thread]");
const thread = place && document.querySelector("[data-detail]") ? new ThreadPage(place) : null;
thread?.start().catch(() => {}); // the rows of the server stay
enableKeys(thread, new Live(document.body.dataset.live, thread));

// A verification that runs shows how far it is.
async function watchVerification() {
  const section = document.querySelector("[data-verify]");
  if (!section?.querySelector("[data-refresh]")) return;
  const now = (await read(location.href)).querySelector("[data-verify]");
  section.replaceWith(rebuild(now));
  setTimeout(watchVerification, 1000);
}
watchVerification();
