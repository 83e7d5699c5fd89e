// Keeps the overview up to date, and lets "Leave it" go back to where one came from.
"use strict";
const live = document.getElementById("live");
if (live && window.EventSource) {
  const source = new EventSource(live.dataset.src);
  let busy = false; // somebody works with the keyboard inside: what has the focus must stay
  live.addEventListener("focusin", () => { busy = true; });
  live.addEventListener("focusout", () => { busy = false; });
  source.onmessage = (event) => {
    live.classList.remove("stale");
    if (!busy) live.innerHTML = JSON.parse(event.data);
  };
  source.onerror = () => live.classList.add("stale");
}
for (const link of document.querySelectorAll("[data-back]")) {
  link.addEventListener("click", (event) => {
    if (history.length > 1) { event.preventDefault(); history.back(); }
  });
}
