// Starts the page: theme, buttons, keys, first drawing. The object `slip` controls the page from the console and from tests.
"use strict";

function setTheme(theme) {
  document.documentElement.dataset.theme = theme;
  readTheme();
  stripImage = null;
  buildLegend();
  buildFigures();
  requestDraw();
}

function systemTheme() {
  return matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light";
}

// The trace in the Chrome trace-event format, which Perfetto opens. In several strings, because one could be too long.
function exportParts() {
  const parts = ['{"traceEvents":[\n'];
  trace.meta.streams.forEach((stream, k) => parts.push(JSON.stringify(
    { ph: "M", pid: stream.device, tid: stream.id, name: "thread_name", args: { name: streamText(k) } }), ",\n"));
  let text = "";
  for (let i = 0; i < trace.count; i++) {
    const stream = trace.meta.streams[trace.stream[i]];
    text += JSON.stringify({ ph: "X", pid: stream.device, tid: stream.id, ts: trace.start[i] / 1e6,
      dur: trace.duration[i] / 1e6, cat: trace.meta.engines[trace.engine[i]], name: trace.nameOf(i) })
      + (i + 1 < trace.count ? ",\n" : "");
    if (text.length > 1 << 20) { parts.push(text); text = ""; }
  }
  parts.push(text, "]}\n");
  if (trace.count === 0) parts.splice(1, parts.length - 2);
  return parts;
}

function exportChrome() {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(new Blob(exportParts(), { type: "application/json" }));
  link.download = `${trace.meta.title.replace(/[^\w.-]+/g, "_").replace(/\.(json|html)$/, "")}.chrome.json`;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 60000);
}

function openSearch() {
  const box = document.getElementById("search");
  box.focus();
  box.select();
}

function escape() {
  if (search.active) {
    document.getElementById("search").value = "";
    runSearch("");
  } else {
    select(NONE, false);
  }
}

const KEYS = {
  w: () => zoomBy(.6), "+": () => zoomBy(.6), "=": () => zoomBy(.6),
  s: () => zoomBy(1 / .6), "-": () => zoomBy(1 / .6), _: () => zoomBy(1 / .6),
  a: () => panBy(-.25), ArrowLeft: () => panBy(-.25), d: () => panBy(.25), ArrowRight: () => panBy(.25),
  ArrowUp: () => { view.y -= 60; requestDraw(); }, ArrowDown: () => { view.y += 60; requestDraw(); },
  f: fitAll, t: () => switchTracks(layout.mode === "stream" ? "engine" : "stream"),
  "/": openSearch, n: () => stepHit(1), N: () => stepHit(-1), Enter: () => stepHit(1), Escape: escape,
  "?": () => document.getElementById("keys").showModal(),
  "]": () => stepNeighbour(1), "[": () => stepNeighbour(-1),
  j: () => { if (chosen.span !== NONE && trace.after(chosen.span) !== NONE) goTo(trace.after(chosen.span)); },
};

function stepNeighbour(step) {
  const next = chosen.span === NONE ? NONE : neighbour(chosen.span, step);
  if (next !== NONE) goTo(next);
}

function listenToKeys() {
  document.addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
    if (event.target.tagName === "INPUT" || event.target.tagName === "SELECT") return;
    if (event.key === "Enter" && event.target.tagName === "BUTTON") return;
    const act = KEYS[event.key] || (event.key.length === 1 && event.key !== "N" ? KEYS[event.key.toLowerCase()] : null);
    if (!act) return;
    event.preventDefault();
    act();
  });
  const box = document.getElementById("search");
  box.addEventListener("input", () => runSearch(box.value));
  box.addEventListener("keydown", (event) => {
    if (event.key === "Enter") stepHit(event.shiftKey ? -1 : 1);
    if (event.key === "Escape") { escape(); canvas.focus(); }
  });
}

function listenToButtons() {
  const on = (id, act) => document.getElementById(id).addEventListener("click", act);
  on("by-stream", () => switchTracks("stream"));
  on("by-engine", () => switchTracks("engine"));
  on("zoom-in", KEYS.w);
  on("zoom-out", KEYS.s);
  on("fit", fitAll);
  on("export", exportChrome);
  on("next", () => stepHit(1));
  on("previous", () => stepHit(-1));
  on("help", KEYS["?"]);
  on("theme", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
  for (const tab of document.querySelectorAll("#side nav button")) tab.addEventListener("click", () => openTab(tab.dataset.tab));
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => setTheme(systemTheme()));
}

// For the console, and for tests.
window.slip = {
  trace,
  op: (i) => ({ index: i, name: trace.nameOf(i), start: trace.start[i], duration: trace.duration[i],
    stream: streamText(trace.stream[i]), engine: trace.meta.engines[trace.engine[i]] }),
  state: () => ({ t0: view.t0, t1: view.t1, y: view.y, tracks: layout.mode, theme: document.documentElement.dataset.theme,
    selected: chosen.span, hover: chosen.hover, hits: search.hits.length, moving: glide.goal !== null, frames: frames.count,
    frameMs: frames.lastMs, openedMs: window.slip.openedMs }),
  where: (i) => boxOf(i),  // the rectangle on the timeline's canvas, in pixels; null if the op is not visible
  view: setView,
  select: (i) => select(i, true),
  find: (text) => { document.getElementById("search").value = text; runSearch(text); return search.hits.length; },
  fit: fitAll,
  openedMs: null,  // from the navigation to the first full drawing
};

(function start() {
  document.title = `${trace.meta.title} \u2013 Slipstream`;
  document.getElementById("title").textContent = trace.meta.title;
  document.documentElement.dataset.theme = systemTheme();
  readTheme();
  useLayout("stream");
  buildLegend();
  buildCards();
  buildFigures();
  buildFindings();
  showOp(NONE);
  openTab(trace.meta.findings.length > 0 ? "findings" : "op");
  switchTracks("stream");
  listenToButtons();
  listenToKeys();
  listenToMouse();
  new ResizeObserver(() => { stripImage = null; resize(); }).observe(document.getElementById("stage"));
  const edge = (trace.last - trace.first) * .01;
  [view.t0, view.t1] = [trace.first - edge, trace.last + edge];
  resize();
  requestAnimationFrame(() => requestAnimationFrame(() => { window.slip.openedMs = performance.now(); }));
})();
