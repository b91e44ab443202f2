// The panel beside the timeline. Everything is inserted as text: `make` takes no HTML.
"use strict";

const CAUSES = {
  unknown: { word: "Unknown", colour: "#8a929e" },
  host: { word: "The host was late", colour: "#b05c92" },
  dependency: { word: "A dependency", colour: "#0072b2" },
  queue: { word: "The hardware queue", colour: "#e69f00" },
  engine: { word: "The engine was busy", colour: "#009e73" },
};

function make(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [key, value] of Object.entries(properties)) {
    if (key === "class") element.className = value;
    else if (key === "click") element.addEventListener("click", value);
    else if (key === "style") Object.assign(element.style, value);
    else element.setAttribute(key, value);
  }
  element.append(...children.filter((child) => child !== null));
  return element;
}

function opLink(i, more = "") {
  return make("button", { class: "link", "data-span": i, click: () => goTo(i) }, trace.nameOf(i) + more);
}

function timeCell(picos) {
  return make("span", { title: exactTime(picos) }, timeText(picos));
}

function momentCell(picos, length) {
  return make("span", { title: exactTime(picos) }, momentText(picos, length));
}

function rows(pairs) {
  const list = make("dl");
  for (const [key, value] of pairs.filter((pair) => pair)) list.append(make("dt", {}, key), make("dd", {}, value));
  return list;
}

function remark(text) {
  return make("p", { class: "small muted" }, text);
}

function share(part, whole) {
  return whole > 0 ? `${Number((100 * part / whole).toFixed(1))} %` : "\u2013";
}

function fill(id, ...children) {
  document.getElementById(id).replaceChildren(...children.filter((child) => child !== null));
}

function openTab(name) {
  for (const tab of document.querySelectorAll("#side nav button")) {
    tab.setAttribute("aria-selected", String(tab.dataset.tab === name));
    document.getElementById(`panel-${tab.dataset.tab}`).hidden = tab.dataset.tab !== name;
  }
}

function momentBefore(gap) {
  return gap > 0 ? `${timeText(gap)} before` : gap === 0 ? "at that moment" : "last";
}

// Shows the last two parts of a path; the tooltip has the whole path.
function placeCell(file, line) {
  return make("span", { title: `${file}:${line}` }, `${file.split("/").slice(-2).join("/")}:${line}`);
}

// The sentence under "why did it start now?".
function whyParts(i) {
  const cause = trace.meta.causes[trace.column("span.cause")[i]];
  const after = trace.after(i);
  const start = trace.start[i], ready = trace.column("span.ready")[i], queued = trace.column("span.queued")[i];
  const other = after === NONE ? null : opLink(after);
  const where = after === NONE ? "" : ` in ${streamText(trace.stream[after])}`;
  const waited = timeText(Math.max(0, start - ready));
  switch (cause) {
    case "dependency":
      if (!other) break;
      return [cause, "It had to follow ", other, `${where}, which ended ${momentBefore(start - trace.end(after))}.`];
    case "queue":
      if (!other) return [cause, `It was ready ${waited} earlier, but an op of another stream was ahead of it in its hardware queue.`];
      return [cause, `It was ready ${waited} earlier, but in the same hardware queue it was behind `, other, `${where}.`];
    case "engine": {
      const engine = trace.meta.engines[trace.engine[i]];
      if (!other) return [cause, `It was ready ${waited} earlier; its engine (${engine}) was busy.`];
      return [cause, `It was ready ${waited} earlier; its engine (${engine}) was busy with `, other, `${where}.`];
    }
    case "host":
      return [cause, `It waited only for the host, which submitted it ${timeText(Math.max(0, start - queued))} before.`,
        ...(other ? [" The last op it follows, ", other, ", had ended before that."] : [])];
    default:
      break;
  }
  if (trace.column("span.submitted")[i] === 0)
    return [cause, trace.meta.foreign
      ? "The trace does not show why: other tools do not record submissions and waits."
      : "It was submitted before the trace began, so the trace does not show its waits."];
  return [cause, `It was ready ${waited} before it started, and its engine was free. The trace does not show why it waited: `
    + "the cores may have been busy with other work.", ...(other ? [" The last op that ended before it was ", other, `${where}.`] : [])];
}

// The kind of an op. A host function on a copy engine is a load or a store: the host itself moves the bytes.
function kindText(i) {
  const kind = trace.meta.kinds[trace.column("span.kind")[i]];
  const engine = trace.engine[i];
  if (kind !== "host function" || (engine !== ENGINE.copyIn && engine !== ENGINE.copyOut)) return kind;
  return engine === ENGINE.copyIn ? "load by the host" : "store by the host";
}

function kindRow(i) {
  if (trace.meta.foreign) return null;
  switch (kindText(i)) {
    case "load by the host": return ["what it does", "the host reads these bytes from their file into the device's memory"];
    case "store by the host": return ["what it does", "the host writes these bytes out of the device's memory"];
    case "exchange": return ["what it does", "exchanges data with other ranks; it ends when all have taken part"];
    default: return null;
  }
}

function rangeText({ buffer, offset, bytes }) {
  const name = buffer ? buffer.name || `buffer ${buffer.id}` : "unknown buffer";
  const whole = buffer && offset === 0 && bytes === buffer.bytes;
  return `${name} ${whole ? `(all ${bytesText(bytes)})` : `[${offset}, ${offset + bytes})`}`;
}

function rangeList(title, ranges) {
  if (ranges.length === 0) return null;
  const max = 40;
  return make("div", {}, make("h3", {}, title), ...ranges.slice(0, max).map((range) => make("p", { class: "small" }, rangeText(range))),
    ranges.length > max ? remark(`and ${ranges.length - max} more`) : "");
}

// The ops for which this one was the last that had to end before they could start.
function followers(i) {
  const after = trace.column("span.after");
  const list = [];
  let count = 0;
  for (let k = 0; k < after.length; k++) {
    if (after[k] !== i + 1) continue;
    if (++count <= 8) list.push(k);
  }
  if (count === 0) return null;
  return make("div", {}, make("h3", {}, `Started after it (${count})`),
    ...list.map((k) => make("p", { class: "small" }, opLink(k, ` \u00b7 ${streamText(trace.stream[k])}`))));
}

function predictionPart(i) {
  const row = trace.meta.prediction ? trace.prediction(i) : NONE;
  if (!trace.meta.prediction) return null;
  if (row === NONE) return remark("The prediction has no such op.");
  const predicted = trace.column("prediction.duration")[row], start = trace.column("prediction.start")[row];
  const measured = trace.duration[i];
  return make("div", { id: "prediction" }, make("h3", {}, "Predicted and measured"), rows([
    ["predicted time", timeCell(predicted)],
    ["measured time", timeCell(measured)],
    ["difference", `${timeText(measured - predicted)} (${share(measured - predicted, predicted)})`],
    ["predicted start", momentCell(start, predicted)],
    ["started later by", timeCell(trace.start[i] - start)],
  ]));
}

function costRows(i) {
  const bytes = trace.column("span.cost_bytes")[i], flops = trace.column("span.cost_flops")[i];
  const moved = trace.column("span.bytes")[i], time = trace.duration[i] / 1e12;
  return [
    bytes > 0 ? ["moves", bytesText(bytes) + (time > 0 ? `, ${countText(bytes / time, "B/s")}` : "")] : null,
    flops > 0 ? ["computes", countText(flops, "flop") + (time > 0 ? `, ${countText(flops / time, "flop/s")}` : "")] : null,
    moved > 0 ? ["memory", bytesText(moved)] : null,
  ];
}

function showOp(i) {
  if (i === NONE) {
    fill("panel-op", make("p", { class: "muted" }, "Click an op to see its properties and the reason why it started at that time."),
      make("p", { class: "muted small" }, "Press ? for the keys."));
    return;
  }
  const [cause, ...sentence] = whyParts(i);
  const file = trace.meta.files[trace.column("span.file")[i]];
  const queue = trace.column("span.queue")[i], submitted = trace.column("span.submitted")[i] > 0;
  const slack = trace.column("span.slack")[i];
  const { reads, writes } = trace.ranges(i);
  const found = trace.findings.get(i) || [];
  fill("panel-op",
    make("h2", { id: "op-name" }, trace.nameOf(i)),
    make("div", {}, make("span", { class: "chip", id: "op-engine" }, trace.meta.engines[trace.engine[i]]),
      trace.meta.foreign ? "" : make("span", { class: "chip", id: "op-kind" }, kindText(i)),
      make("span", { class: "chip" }, streamText(trace.stream[i])),
      trace.isCritical(i) ? make("span", { class: "chip" }, "critical path") : "",
      ...found.map((k) => make("span", { class: "chip alarm" }, trace.meta.findings[k].kind))),
    make("div", { class: "why", id: "why" }, make("div", { class: "cause", "data-cause": cause },
      `Why did it start now? ${CAUSES[cause].word}`), make("p", {}, ...sentence)),
    ...found.map((k) => make("p", {}, make("button", { class: "link", click: () => showFinding(k) },
      trace.meta.findings[k].title))),
    make("h3", {}, "When"),
    rows([
      ["time", timeCell(trace.duration[i])],
      submitted ? ["submitted", momentCell(trace.column("span.queued")[i], trace.duration[i])] : null,
      submitted ? ["ready", momentCell(trace.column("span.ready")[i], trace.duration[i])] : null,
      ["started", momentCell(trace.start[i], trace.duration[i])],
      ["ended", momentCell(trace.end(i), trace.duration[i])],
      submitted ? ["slack", trace.isCritical(i) ? "none: it is on the critical path" : timeCell(slack)] : null,
    ]),
    predictionPart(i),
    make("h3", {}, "What"),
    rows([
      ["exactly", exactTime(trace.duration[i])],
      kindRow(i),
      trace.meta.foreign ? null : ["position", String(trace.column("span.position")[i])],
      ["device", deviceText(trace.deviceOf(i))],
      queue > 0 ? ["hardware queue", String(queue - 1)] : null,
      file ? ["source line", placeCell(file, trace.column("span.line")[i])] : null,
      ...costRows(i),
    ]),
    rangeList("Reads", reads), rangeList("Writes", writes),
    trace.column("span.opaque")[i] > 0 ? remark("It declared no ranges, so the memory that it accesses is unknown.") : null,
    followers(i));
}

function showFinding(number) {
  openTab("findings");
  document.querySelectorAll(".finding").forEach((element, k) => element.classList.toggle("chosen", k === number));
  const spans = trace.meta.findings[number].spans;
  if (spans.length > 0) { showSpans(spans); select(spans[0], false); }
}

function buildFindings() {
  const list = trace.meta.findings;
  const max = 500;
  document.getElementById("tab-findings").textContent = `Findings (${list.length})`;
  fill("panel-findings",
    trace.meta.dropped > 0 ? make("p", {}, `${trace.meta.dropped} records are missing from the trace: nothing is proven.`) : null,
    list.length === 0 ? make("p", { class: "muted" }, trace.meta.foreign
      ? "Another program recorded this trace. It has the times of ops, but not their memory accesses and waits, so it cannot be checked."
      : "No finding. Only ops that declare what they read and write can be checked.") : null,
    ...list.slice(0, max).map((finding, number) => make("div", { class: "finding", "data-finding": number },
      make("div", { class: "head" }, make("span", { class: "chip alarm" }, finding.kind), " ",
        make("button", { class: "link", click: () => showFinding(number) }, finding.title)),
      make("pre", {}, finding.detail),
      make("div", { class: "small" }, ...finding.spans.slice(0, 12).map((i) => make("span", { class: "chip" }, opLink(i)))))),
    list.length > max ? make("p", { class: "muted" }, `and ${list.length - max} more`) : null);
}

function goTo(i) {
  select(i, true);
}
