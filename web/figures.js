// The figures of the run: the row of cards at the top, and the tab "Figures" with their formulas.
"use strict";

const ENGINE = { none: 0, compute: 1, copyIn: 2, copyOut: 3, host: 4, communication: 5 };
let figuresOf = 0;  // index into meta.figures; 0 is all devices together

function scopeText(device) {
  return device < 0 ? "all devices" : deviceText(device);
}

function engineTimes() {
  const device = trace.meta.figures[figuresOf].device;
  return trace.meta.engine_times.filter((time) => device < 0 || time.device === device);
}

// The sum of the idle times of the engines, by cause.
function idleByCause(times) {
  return trace.meta.causes.map((cause, k) => times.reduce((sum, time) => sum + time.idle[k], 0));
}

function criticalTime() {
  return trace.column("critical").reduce((sum, i) => sum + trace.duration[i], 0);
}

function card(label, value, note, extra = "") {
  return make("button", { class: `card ${extra}`, title: `${label}: ${note}`, click: () => openTab("figures") },
    make("div", { class: "label" }, label), make("div", { class: "value" }, value), make("div", { class: "note" }, note));
}

function buildCards() {
  const f = trace.meta.figures[figuresOf];
  const idle = idleByCause(engineTimes());
  const longest = idle.indexOf(Math.max(...idle));
  const found = trace.meta.findings.length;
  const critical = trace.column("critical").length;
  const cards = [
    card("Total", timeText(f.total), `${f.ops.toLocaleString("en")} ops, start to end`),
    card("Overlap", f.copy > 0 ? share(f.overlapped, f.copy) : "\u2013",
      f.copy > 0 ? `${timeText(f.overlapped)} of ${timeText(f.copy)}` : "no copies"),
    card("Exposed", timeText(f.exposed), "copying, nothing computes"),
    ...communicationCards(f),
    card("Idle", share(f.idle, f.total), idle[longest] > 0 && (!trace.meta.foreign || critical > 0)
      ? `engines wait: ${CAUSES[trace.meta.causes[longest]].word.toLowerCase()}` : "no engine busy"),
    card("Lower bound", timeText(f.bound), boundNote(f)),
    card("Critical path", critical > 0 ? timeText(criticalTime()) : "\u2013",
      trace.meta.foreign && critical === 0 ? "needs a trace of Slipstream" : `${critical.toLocaleString("en")} ops`),
    trace.meta.foreign ? card("Findings", "\u2013", "needs a trace of Slipstream")
      : card("Findings", String(found), found > 0 ? findingKinds() : "nothing found", found > 0 ? "alarm" : "good"),
  ];
  cards[cards.length - 1].addEventListener("click", () => openTab("findings"));
  fill("cards", ...cards);
}

function communicationCards(f) {
  if (f.communication === 0) return [];
  return [card("Communication", share(f.communication_overlapped, f.communication),
    `${timeText(f.communication_overlapped)} of ${timeText(f.communication)} while computing; `
    + `${timeText(f.communication_exposed)} exposed`)];
}

// "2 race, 1 superfluous wait"
function findingKinds() {
  const counts = new Map();
  for (const { kind } of trace.meta.findings) counts.set(kind, (counts.get(kind) || 0) + 1);
  return [...counts].map(([kind, count]) => `${count} ${kind}`).join(", ");
}

function boundNote(f) {
  if (f.bound === 0) return "nothing computed or copied";
  return `the run took ${Number((f.total / f.bound).toFixed(2))}x of it`;
}

function boundFormula(f) {
  const of = (sums) => [ENGINE.compute, ENGINE.copyIn, ENGINE.copyOut].map((e) => timeText(sums[e])).join(", ");
  const text = "max(sum of compute, sum of copies in, sum of copies out)";
  const serial = Math.max(...[ENGINE.compute, ENGINE.copyIn, ENGINE.copyOut].map((e) => f.sum[e])) === f.bound;
  if (!serial && f.device >= 0) return "the longest of compute, copies in and copies out, as many ops at once as an engine ever ran";
  if (f.device >= 0 || trace.meta.figures.length === 1) return `${text} = max(${of(f.sum)})`;
  return `the highest of all devices: ${text}`;
}

function formula(name, value, ...text) {
  return make("p", { class: "formula" }, make("b", {}, `${name} = ${value}`), make("br"), ...text);
}

function idleBar(time) {
  const whole = time.busy + time.idle.reduce((a, b) => a + b, 0) + time.done;
  const bar = make("div", { class: "bar" });
  const piece = (part, colour, title) => {
    if (part > 0) bar.append(make("i", { title: `${title}: ${timeText(part)}`,
      style: { width: `${100 * part / whole}%`, background: colour } }));
  };
  piece(time.busy, paint.colours[time.engine * TONES.length], "busy");
  time.idle.forEach((part, k) => {
    const { word, colour } = CAUSES[trace.meta.causes[k]];
    if (part > 0) bar.append(make("i", { class: "gap", title: `idle, ${word.toLowerCase()}: ${timeText(part)}`,
      style: { width: `${100 * part / whole}%`, background: `repeating-linear-gradient(45deg, ${colour} 0 2px, transparent 2px 5px)` } }));
  });
  return bar;
}

function enginePart(time) {
  const causes = time.idle.map((part, k) => [part, CAUSES[trace.meta.causes[k]].word.toLowerCase()])
    .filter(([part]) => part > 0).sort((a, b) => b[0] - a[0]);
  return make("div", {},
    make("p", { class: "small" }, `${trace.meta.engines[time.engine]}, ${deviceText(time.device)}: busy ${timeText(time.busy)}`),
    idleBar(time),
    ...causes.map(([part, word]) => make("p", { class: "small muted" }, `idle ${timeText(part)}: ${word}`)),
    time.done > 0 ? make("p", { class: "small muted" }, `idle ${timeText(time.done)}: after its last op`) : "");
}

function deviceChoice() {
  const list = trace.meta.figures;
  if (list.length === 1) return null;
  const choice = make("select", { "aria-label": "Figures of" },
    ...list.map((f, k) => make("option", { value: k }, scopeText(f.device))));
  choice.value = String(figuresOf);
  choice.addEventListener("change", () => { figuresOf = Number(choice.value); buildCards(); buildFigures(); });
  return make("p", {}, choice);
}

function buildFigures() {
  const f = trace.meta.figures[figuresOf];
  const times = engineTimes();
  const max = 24;
  fill("panel-figures", deviceChoice(),
    make("h3", {}, "Overlap"),
    formula("overlap", f.copy > 0 ? share(f.overlapped, f.copy) : "\u2013",
      `copy time while computing / copy time = ${timeText(f.overlapped)} / ${timeText(f.copy)} `,
      "(the definition of Holistic Trace Analysis)"),
    formula("exposed", timeText(f.exposed),
      `copy time \u2212 the part while computing = ${timeText(f.copy)} \u2212 ${timeText(f.overlapped)}`),
    ...communicationFormulas(f),
    make("h3", {}, "Lower bound"),
    formula("bound", timeText(f.bound), boundFormula(f)),
    formula("total", timeText(f.total), "last end \u2212 first start; ", boundNote(f)),
    make("h3", {}, "Critical path"),
    formula("critical path", timeText(criticalTime()),
      `durations of its ${trace.column("critical").length.toLocaleString("en")} ops; slack of an op = how much later it `,
      "could have ended without a longer run"),
    make("h3", {}, "Idle, by what the next op waited for"),
    formula("idle", `${timeText(f.idle)} (${share(f.idle, f.total)})`, "total \u2212 time with at least one engine busy"),
    ...times.slice(0, max).map(enginePart),
    times.length > max ? remark(`and ${times.length - max} more engines`) : null,
    trace.meta.not_run > 0 ? remark(`${trace.meta.not_run} ops had not run when the trace ended.`) : null,
    trace.meta.prediction ? remark(`${trace.meta.matched} ops have a prediction.`) : null);
}

function communicationFormulas(f) {
  if (f.communication === 0) return [];
  return [make("h3", {}, "Communication"),
    formula("overlap", share(f.communication_overlapped, f.communication),
      "communication while computing / communication = "
      + `${timeText(f.communication_overlapped)} / ${timeText(f.communication)}; the wait for late ranks is part of it`),
    formula("exposed", timeText(f.communication_exposed), "communication \u2212 the part while computing = "
      + `${timeText(f.communication)} \u2212 ${timeText(f.communication_overlapped)}`)];
}

// The legend: engines in their colours.
function buildLegend() {
  const used = new Uint8Array(trace.meta.engines.length);
  for (let i = 0; i < trace.count; i++) used[trace.engine[i]] = 1;
  const swatch = (style, text) => make("span", {}, make("i", { class: "swatch", style }), text);
  fill("legend",
    ...trace.meta.engines.map((name, k) => used[k] ? swatch({ background: paint.colours[k * TONES.length] },
      k === ENGINE.none ? "no engine" : name) : null),
    trace.findings.size > 0 ? swatch({ border: `2px solid ${paint.css.alarm}` }, "finding") : null,
    trace.column("arrow.from").length > 0 ? make("span", {}, "\u2192 event, \u21e2 barrier") : null,
    trace.meta.prediction ? swatch({ border: `1px solid ${paint.css["ink-3"]}`, height: "6px" }, "predicted") : null);
}
