// Draws all that surrounds the ops: ruler, grid, names of tracks, arrows, and the strip above, which shows the whole trace.
"use strict";

// The step of the ruler: 1, 2 or 5 times a power of ten, and at least 110 pixels wide.
function rulerStep() {
  const wanted = plot.scale * 110;
  const power = 10 ** Math.floor(Math.log10(wanted));
  return [1, 2, 5, 10].map((m) => m * power).find((step) => step >= wanted);
}

function forTicks(each) {
  const step = rulerStep();
  const first = Math.ceil(view.t0 / step);
  for (let k = first; k * step <= view.t1 && k < first + 500; k++) each(k * step, xOf(k * step), step);
}

function drawGrid() {
  pen.fillStyle = paint.css["line-soft"];
  forTicks((time, x) => pen.fillRect(Math.round(x), SIZES.ruler, 1, plot.height));
}

// The label of a tick, with enough digits to differ from the next tick.
function tickText(time, step) {
  if (Math.abs(time) < step / 2) return "0";
  const [unit, word] = TIME_UNITS.find(([min]) => Math.abs(time) >= min) || TIME_UNITS[4];
  const digits = Math.max(0, Math.min(12, -Math.floor(Math.log10(step / unit) + 1e-9)));
  return `${(time / unit).toFixed(digits)} ${word}`;
}

function drawRuler() {
  pen.fillStyle = paint.css.surface;
  pen.fillRect(0, 0, plot.left + plot.width, SIZES.ruler);
  pen.fillStyle = paint.css.line;
  pen.fillRect(0, SIZES.ruler - 1, plot.left + plot.width, 1);
  pen.font = "11px system-ui, sans-serif";
  pen.textBaseline = "middle";
  forTicks((time, x, step) => {
    if (x < plot.left) return;
    pen.fillStyle = paint.css.line;
    pen.fillRect(Math.round(x), SIZES.ruler - 7, 1, 6);
    pen.fillStyle = paint.css["ink-2"];
    pen.fillText(tickText(time, step), x + 4, SIZES.ruler / 2 - 1);
  });
  pen.fillStyle = paint.css["ink-3"];
  pen.fillText(`${timeText(view.t1 - view.t0)} shown`, 12, SIZES.ruler / 2 - 1);
}

function drawGutter() {
  pen.fillStyle = paint.css.surface;
  pen.fillRect(0, SIZES.ruler, plot.left, plot.height + 1);
  pen.fillStyle = paint.css.line;
  pen.fillRect(plot.left - 1, SIZES.ruler, 1, plot.height);
  pen.textBaseline = "middle";
  for (const { device, y } of layout.headers) {
    const top = yOf(y);
    if (top + SIZES.device < 0 || top > plot.height) continue;
    pen.fillStyle = paint.css.bg;
    pen.fillRect(0, top, plot.left + plot.width, SIZES.device - 2);
    pen.fillStyle = paint.css["ink-2"];
    pen.font = "600 11px system-ui, sans-serif";
    const sign = layout.collapsed.has(device) ? "\u25b8" : "\u25be";
    pen.fillText(`${sign} ${deviceText(device).slice(0, MAX_LABEL)}`, 12, top + SIZES.device / 2 - 1);
  }
  for (const track of layout.tracks) drawTrackName(track);
}

function drawTrackName(track) {
  const top = yOf(track.y);
  if (track.hidden || top + track.height < SIZES.ruler || top > plot.height) return;
  const middle = top + Math.min(track.height, SIZES.lane) / 2;
  pen.font = "12px system-ui, sans-serif";
  pen.fillStyle = track.critical ? paint.css.accent : paint.css.ink;
  pen.fillText(fitted(track.label, plot.left - 36, 6.8), 22, middle, plot.left - 30);
  if (layout.mode === "engine" && !track.critical) {
    pen.fillStyle = paint.colours[track.engine * TONES.length];
    pen.fillRect(12, middle - 4, 4, 8);
  }
  if (track.lanes.length >= 3 && track.height > 45) {
    pen.font = "10.5px system-ui, sans-serif";
    pen.fillStyle = paint.css["ink-3"];
    pen.fillText(`${track.lanes.length} at a time`, 22, middle + 17, plot.left - 30);
  }
}

const MAX_ARROWS = 300;  // if more are visible, only those of the selected op are drawn

// Indices of arrows, sorted by the time at one end, so that binary search finds the visible ones.
const arrowOrder = { from: null, to: null };
function visibleArrows() {
  const from = trace.column("arrow.from"), to = trace.column("arrow.to");
  if (!arrowOrder.from) {
    const all = Uint32Array.from(from, (_, k) => k);
    arrowOrder.from = all.slice().sort((a, b) => trace.end(from[a]) - trace.end(from[b]));
    arrowOrder.to = all.sort((a, b) => trace.start[to[a]] - trace.start[to[b]]);
  }
  const found = new Set();
  for (const [order, time] of [[arrowOrder.from, (k) => trace.end(from[k])], [arrowOrder.to, (k) => trace.start[to[k]]]]) {
    const first = lowerBound(order, 0, order.length, (k) => time(k) >= view.t0);
    const last = lowerBound(order, first, order.length, (k) => time(k) > view.t1);
    if (last - first > MAX_ARROWS) return [];
    for (let k = first; k < last; k++) found.add(order[k]);
  }
  return [...found];
}

// Arrows that end at or leave from an op.
const arrowsOf = { span: NONE, list: [] };
function touching(span) {
  if (arrowsOf.span !== span) {
    const from = trace.column("arrow.from"), to = trace.column("arrow.to");
    const list = [];
    for (let k = 0; k < from.length && list.length < MAX_ARROWS; k++) {
      if (from[k] === span || to[k] === span) list.push(k);
    }
    Object.assign(arrowsOf, { span, list });
  }
  return arrowsOf.list;
}

function drawArrows() {
  const from = trace.column("arrow.from"), to = trace.column("arrow.to"), barrier = trace.column("arrow.barrier");
  pen.save();
  pen.beginPath();
  pen.rect(plot.left, SIZES.ruler, plot.width, plot.height);
  pen.clip();
  for (const k of trace.count < 20000 || view.t1 - view.t0 < (trace.last - trace.first) / 10 ? visibleArrows() : [])
    drawArrow(from[k], to[k], paint.css["ink-3"], 1, barrier[k] === 1);
  if (chosen.span !== NONE) {
    for (const k of touching(chosen.span)) drawArrow(from[k], to[k], paint.css.accent, 2, barrier[k] === 1);
    const after = trace.after(chosen.span);
    // Devices in virtual time have different clocks: an earlier op may be drawn after a later one.
    if (after !== NONE && trace.end(after) <= trace.start[chosen.span]) drawArrow(after, chosen.span, paint.css.ink, 2, false);
  }
  pen.restore();
}

function drawArrow(from, to, colour, width, dashed) {
  const a = layout.lanes[layout.laneOf[from]], b = layout.lanes[layout.laneOf[to]];
  if (a.height === 0 || b.height === 0) return;
  const x0 = xOf(trace.end(from)), x1 = xOf(trace.start[to]);
  const y0 = yOf(a.y) + a.height / 2, y1 = yOf(b.y) + b.height / 2;
  const bend = Math.max(10, Math.min(60, Math.abs(x1 - x0) / 2));
  pen.beginPath();
  pen.moveTo(x0, y0);
  pen.bezierCurveTo(x0 + bend, y0, x1 - bend, y1, x1 - 4, y1);
  pen.strokeStyle = paint.css.surface;  // an outline, so that the arrow is visible across ops
  pen.lineWidth = width + 2;
  pen.stroke();
  pen.strokeStyle = pen.fillStyle = colour;
  pen.lineWidth = width;
  pen.setLineDash(dashed ? [4, 3] : []);
  pen.stroke();
  pen.setLineDash([]);
  pen.beginPath();
  pen.moveTo(x1, y1);
  pen.lineTo(x1 - 6, y1 - 3.5);
  pen.lineTo(x1 - 6, y1 + 3.5);
  pen.fill();
}

// The strip above: how busy compute, copies and the rest were over the whole trace. Drawn once for a size and theme.
const strip = document.getElementById("overview");
const stripPen = strip.getContext("2d", { alpha: false });
const stripRows = [[1], [2, 3], [5], [0, 4]];  // numbers of engines: compute, copies, communication, the rest
let stripImage = null;

function buildStrip() {
  const box = strip.getBoundingClientRect();
  const ratio = window.devicePixelRatio || 1;
  strip.width = Math.max(1, Math.round(box.width * ratio));
  strip.height = Math.max(1, Math.round(box.height * ratio));
  stripPen.setTransform(ratio, 0, 0, ratio, 0, 0);
  stripImage = document.createElement("canvas");
  stripImage.width = Math.max(1, Math.round(box.width));
  stripImage.height = Math.max(1, Math.round(box.height));
  const image = stripImage.getContext("2d", { alpha: false });
  image.fillStyle = paint.css.bg;
  image.fillRect(0, 0, box.width, box.height);
  const busy = busyByPixel(stripImage.width);
  const step = Math.floor((stripImage.height - 6) / stripRows.length);
  stripRows.forEach((engines, row) => {
    const max = busy[row].reduce((a, b) => Math.max(a, b), 1e-9);
    image.fillStyle = paint.colours[engines[0] * TONES.length];
    busy[row].forEach((value, x) => {
      if (value <= 0) return;
      image.globalAlpha = .25 + .75 * Math.min(1, value / max);
      image.fillRect(x, 4 + row * step, 1, step - 2);
    });
    image.globalAlpha = 1;
  });
}

function busyByPixel(width) {
  const rowOf = trace.meta.engines.map((name, engine) => stripRows.findIndex((row) => row.includes(engine)));
  const rows = stripRows.map(() => new Float64Array(width));
  const scale = (trace.last - trace.first) / width;
  for (let i = 0; i < trace.count; i++) {
    const row = rows[rowOf[trace.engine[i]]];
    const start = trace.start[i] / scale, end = start + trace.duration[i] / scale;
    const last = Math.min(width - 1, Math.floor(end));
    for (let x = Math.max(0, Math.floor(start)); x <= last; x++)
      row[x] += Math.min(end, x + 1) - Math.max(start, x) + 1e-6;
  }
  return rows;
}

function drawOverview() {
  if (!stripImage) buildStrip();
  const width = stripImage.width, height = stripImage.height;
  const scale = width / (trace.last - trace.first);
  stripPen.drawImage(stripImage, 0, 0, width, height);
  const x0 = Math.max(0, (view.t0 - trace.first) * scale), x1 = Math.min(width, (view.t1 - trace.first) * scale);
  stripPen.fillStyle = paint.css.surface;
  stripPen.globalAlpha = .6;
  stripPen.fillRect(0, 0, x0, height);
  stripPen.fillRect(x1, 0, width - x1, height);
  stripPen.globalAlpha = 1;
  stripPen.strokeStyle = paint.css.accent;
  stripPen.lineWidth = 1.5;
  stripPen.strokeRect(x0 + .75, .75, Math.max(2, x1 - x0 - 1.5), height - 1.5);
}
