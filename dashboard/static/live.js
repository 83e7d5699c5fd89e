// Keeps the overview up to date, and lets "Leave it" go back to where one came from.
"use strict";
const live = document.getElementById("live");
if (live && window.EventSource) {
  // What has the focus is found again by its place and its name, so that one can work while the numbers change.
  const all = () => [...live.querySelectorAll("a, button, [tabindex]")];
  const name = (e) => e.tagName + (e.getAttribute("aria-label") || e.getAttribute("href"));
  const show = (html) => {
    const focused = live.contains(document.activeElement) ? name(document.activeElement) : null;
    const same = all().filter((e) => name(e) === focused).indexOf(document.activeElement);
    const scrolled = [...live.querySelectorAll(".scroll")].map((e) => e.scrollLeft);
    live.innerHTML = html;
    live.querySelectorAll(".scroll").forEach((e, i) => { e.scrollLeft = scrolled[i] || 0; });
    if (focused) all().filter((e) => name(e) === focused)[same]?.focus({ preventScroll: true });
  };
  let pressed = false; // a click needs the element on which it began
  live.addEventListener("pointerdown", () => { pressed = true; });
  for (const end of ["pointerup", "pointercancel"]) window.addEventListener(end, () => setTimeout(() => { pressed = false; }));
  const selects = () => { const s = getSelection(); return s && !s.isCollapsed && live.contains(s.anchorNode); };
  let timer;
  const fresh = () => {
    live.classList.remove("stale");
    clearTimeout(timer);
    timer = setTimeout(() => live.classList.add("stale"), 10000);
  };
  const source = new EventSource(live.dataset.src);
  source.onmessage = (event) => {
    fresh();
    if (!pressed && !selects()) show(JSON.parse(event.data));
  };
  fresh();
}
for (const link of document.querySelectorAll("[data-back]")) {
  link.addEventListener("click", (event) => {
    if (history.length > 1) { event.preventDefault(); history.back(); }
  });
}
