// Drawing. The cost of a frame depends on the visible pixels, not on the size of the trace. A lane with few visible ops
// is drawn op by op. A lane with many is drawn as a row of pixels, whose opacity is the busy share of their time.
"use strict";

const view = { t0: 0, t1: 1, y: 0 };
const chosen = { span: NONE, hover: NONE };
const canvas = document.getElementById("timeline");
const pen = canvas.getContext("2d", { alpha: false });
const frames = { count: 0, lastMs: 0 };

// The palette of Okabe and Ito, by number of the engine: compute is blue, copies in orange, copies out green, communication
// vermilion. TONES vary a colour by the name of the op.
const HUES = {
  light: [[138, 146, 158], [0, 114, 178], [230, 159, 0], [0, 158, 115], [176, 92, 146], [213, 94, 0]],
  dark: [[120, 130, 145], [64, 150, 214], [236, 172, 48], [38, 176, 134], [206, 126, 176], [240, 124, 56]],
};
const TONES = [0, .16, -.14, .28];
const paint = { colours: [], pixels: [], ink: {}, css: {} };

function mix([r, g, b], tone) {
  const to = tone > 0 ? 255 : 0;
  const part = Math.abs(tone);
  return [r, g, b].map((c) => Math.round(c + (to - c) * part));
}

function readTheme() {
  const style = getComputedStyle(document.documentElement);
  for (const key of ["bg", "surface", "line", "line-soft", "ink", "ink-2", "ink-3", "accent", "alarm"])
    paint.css[key] = style.getPropertyValue(`--${key}`).trim();
  const hues = HUES[document.documentElement.dataset.theme] || HUES.light;
  paint.colours = [];
  paint.pixels = [];
  paint.ink = [];
  hues.forEach((hue) => TONES.forEach((tone) => {
    const [r, g, b] = mix(hue, tone);
    paint.colours.push(`rgb(${r},${g},${b})`);
    paint.pixels.push((b << 16) | (g << 8) | r);  // a pixel of ImageData, without its alpha
    paint.ink.push(r * .299 + g * .587 + b * .114 > 140 ? "#10161e" : "#ffffff");
  }));
}

// The index of an op's colour in paint.colours: the engine determines the hue, the name the tone.
function colourOf(i) {
  return trace.engine[i] * TONES.length + ((trace.name[i] * 2654435761 >>> 8) & 3);
}

const plot = { left: SIZES.gutter, width: 100, height: 100, scale: 1 };

function xOf(time) { return plot.left + (time - view.t0) / plot.scale; }
function timeAt(x) { return view.t0 + (x - plot.left) * plot.scale; }
function yOf(y) { return SIZES.ruler + y - view.y; }

function resize() {
  const box = canvas.getBoundingClientRect();
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(box.width * ratio));
  canvas.height = Math.max(1, Math.round(box.height * ratio));
  pen.setTransform(ratio, 0, 0, ratio, 0, 0);
  plot.width = Math.max(50, box.width - SIZES.gutter);
  plot.height = box.height;
  requestDraw();
}

let waiting = false;
function requestDraw() {
  if (waiting) return;
  waiting = true;
  requestAnimationFrame(() => { waiting = false; draw(); });
}

function draw() {
  const begin = performance.now();
  plot.scale = (view.t1 - view.t0) / plot.width;
  view.y = Math.max(0, Math.min(view.y, layout.height - plot.height + SIZES.ruler));
  pen.fillStyle = paint.css.surface;
  pen.fillRect(0, 0, plot.left + plot.width + 1, plot.height + 1);
  drawGrid();
  for (const track of layout.tracks) {
    if (track.hidden || yOf(track.y + track.height) < SIZES.ruler || yOf(track.y) > plot.height) continue;
    pen.fillStyle = paint.css["line-soft"];
    pen.fillRect(plot.left, yOf(track.y + track.height) + SIZES.gap / 2, plot.width, 1);
    for (const lane of track.lanes) drawLane(track, lane);
  }
  drawMarks();
  drawArrows();
  drawChosen();
  drawGutter();
  drawRuler();
  drawOverview();
  frames.count++;
  frames.lastMs = performance.now() - begin;
}

function drawLane(track, lane) {
  const y = yOf(lane.y);
  if (y + lane.height < SIZES.ruler || y > plot.height) return;
  const faded = search.active && !track.critical;
  if (faded) pen.globalAlpha = .25;
  drawOps(lane, lane.list, "sums", y + 1, lane.height - 2, !faded);
  pen.globalAlpha = 1;
  if (faded && lane.hits && lane.hits.length > 0) drawOps(lane, lane.hits, "hitSums", y + 1, lane.height - 2, true);
  if (lane.predicted && lane.predicted.length > 0) drawPredicted(lane, y + lane.height);
}

function drawOps(lane, list, sums, y, height, labels) {
  const [from, to] = visible(list, view.t0, view.t1);
  if (to - from > plot.width / 3) return drawDense(lane, list, sums, from, to, y, height);
  const wide = [];
  for (let k = from; k < to; k++) {
    const i = list[k];
    const x0 = Math.max(plot.left - 2, xOf(trace.start[i]));
    const x1 = Math.min(plot.left + plot.width + 2, xOf(trace.start[i] + trace.duration[i]));
    const width = x1 - x0;
    pen.fillStyle = paint.colours[colourOf(i)];
    pen.fillRect(x0, y, width > 3 ? width - .75 : Math.max(1, width), height);
    if (width > 24) wide.push(i, x0, width);
  }
  if (labels && height > 10) drawLabels(wide, y, height);
}

// Draws the names of ops that are wide enough.
function drawLabels(wide, y, height) {
  const large = height > 14;
  pen.font = large ? "11px system-ui, sans-serif" : "9.5px system-ui, sans-serif";
  pen.textBaseline = "middle";
  for (let k = 0; k < wide.length; k += 3) {
    const left = Math.max(wide[k + 1], plot.left);
    const room = wide[k + 1] + wide[k + 2] - left - 8;
    const name = trace.name[wide[k]], whole = trace.meta.names[name];
    const text = fitted(whole, room, widthOf(name, large) / Math.min(whole.length, MAX_LABEL));
    if (text === "") continue;
    pen.fillStyle = paint.ink[colourOf(wide[k])];
    pen.fillText(text, left + 4, y + height / 2 + .5, room);
  }
}

const MAX_LABEL = 400;
const widths = [new Map(), new Map()];

// The width of a name in the pen's font, measured once for each name.
function widthOf(name, large) {
  const known = widths[large ? 1 : 0];
  if (!known.has(name)) known.set(name, pen.measureText(trace.meta.names[name].slice(0, MAX_LABEL)).width);
  return known.get(name);
}

function fitted(text, room, letter) {
  const max = Math.min(MAX_LABEL, Math.floor((room + .5) / letter));
  if (text.length <= max) return text;
  return max < 3 ? "" : text.slice(0, max - 1).replace(/[\ud800-\udbff]$/, "") + "\u2026";
}

// Prefix sums of durations, so that the busy time of any interval is one subtraction.
function sumsOf(lane, list, key) {
  if (lane[key] && lane[key].list === list) return lane[key].sums;
  const sums = new Float64Array(list.length + 1);
  for (let k = 0; k < list.length; k++) sums[k + 1] = sums[k] + trace.duration[list[k]];
  lane[key] = { list, sums };
  return sums;
}

const dense = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
let denseRow = null;

// Draws one pixel for each interval of plot.scale. The intervals are fixed in time, so pixels do not flicker while the view
// moves.
function drawDense(lane, list, key, from, to, y, height) {
  const width = Math.ceil(plot.width) + 1;
  if (!denseRow || denseRow.width !== width) {
    dense.canvas.width = width;
    dense.canvas.height = 1;
    denseRow = dense.createImageData(width, 1);
  }
  const sums = sumsOf(lane, list, key);
  const pixels = new Uint32Array(denseRow.data.buffer);
  const first = Math.floor(view.t0 / plot.scale);
  let at = from;
  for (let px = 0; px < width; px++) {
    const stop = (first + px + 1) * plot.scale;
    const next = gallop(list, at, to, stop);
    // Ops that start in this interval, and the one before them if it ends in it.
    const before = at > from ? list[at - 1] : list[from];
    const begin = stop - plot.scale;
    let busy = sums[next] - sums[at];
    const spill = Math.min(stop, trace.end(before)) - Math.max(begin, trace.start[before]);
    if (at > from && spill > 0) busy += spill;
    if (next > at) busy -= Math.max(0, trace.end(list[next - 1]) - stop);
    const share = Math.min(1, busy / plot.scale);
    const shown = next > at ? list[(at + next) >>> 1] : before;
    pixels[px] = next > at || share > 0 ? paint.pixels[colourOf(shown)] | (Math.round(60 + 195 * share) << 24) : 0;
    at = next;
  }
  dense.putImageData(denseRow, 0, 0);
  pen.imageSmoothingEnabled = false;
  pen.drawImage(dense.canvas, 0, 0, width, 1, xOf(first * plot.scale), y, width, height);
}

// The first index in list[from, to) whose op starts at `time` or later. Searches in steps of growing size, because the
// index is usually near `from`.
function gallop(list, from, to, time) {
  let step = 1;
  while (from + step < to && trace.start[list[from + step]] < time) step *= 2;
  return lowerBound(list, from + (step >>> 1), Math.min(to, from + step + 1), (i) => trace.start[i] >= time);
}

// Draws the predicted run of the lane, outlined, below the measured one.
function drawPredicted(lane, y) {
  const start = trace.column("prediction.start"), duration = trace.column("prediction.duration");
  const spans = trace.column("prediction.span");
  const list = lane.predicted;
  const from = Math.max(0, lowerBound(list, 0, list.length, (k) => start[k] >= view.t0) - 8);
  const to = lowerBound(list, from, list.length, (k) => start[k] > view.t1);
  const stride = Math.max(1, Math.floor((to - from) / plot.width));
  pen.lineWidth = 1;
  for (let k = from; k < to; k += stride) {
    const row = list[k];
    const x0 = Math.max(plot.left - 2, xOf(start[row]));
    const x1 = Math.min(plot.left + plot.width + 2, xOf(start[row] + duration[row]));
    if (x1 < plot.left) continue;
    pen.globalAlpha = .3;
    pen.fillStyle = paint.colours[colourOf(spans[row])];
    pen.fillRect(x0, y, Math.max(1, x1 - x0), SIZES.predicted - 3);
    pen.globalAlpha = 1;
    pen.strokeStyle = pen.fillStyle;
    if (x1 - x0 > 2) pen.strokeRect(x0 + .5, y + .5, x1 - x0 - 1, SIZES.predicted - 4);
  }
}

const MAX_BACK = 2000;  // so many marked ops that start before the view are checked, because they may end in it

// Marks ops with findings by a frame and a filled corner, which is visible even if the op is narrower than a pixel.
function drawMarks() {
  pen.lineWidth = 2;
  pen.strokeStyle = pen.fillStyle = paint.css.alarm;
  const marked = trace.marked;
  const from = lowerBound(marked, 0, marked.length, (i) => trace.start[i] >= view.t0);
  const to = lowerBound(marked, from, marked.length, (i) => trace.start[i] > view.t1);
  let last = "";
  for (let k = Math.max(0, from - MAX_BACK); k < to; k++) {
    const box = boxOf(marked[k]);
    if (!box || last === (last = `${box.x | 0} ${box.y}`)) continue;  // one mark a pixel is enough
    pen.strokeRect(box.x + 1, box.y + 2, Math.max(2, box.width - 2), box.height - 4);
    pen.beginPath();
    pen.moveTo(box.x, box.y + 1);
    pen.lineTo(box.x + 8, box.y + 1);
    pen.lineTo(box.x, box.y + 9);
    pen.fill();
  }
}

// The rectangle of an op on the canvas; null if it is not visible.
function boxOf(i) {
  if (trace.end(i) < view.t0 || trace.start[i] > view.t1) return null;
  const lane = layout.lanes[layout.laneOf[i]];
  const y = yOf(lane.y);
  if (lane.height === 0 || y + lane.height < SIZES.ruler || y > plot.height) return null;
  const x = Math.max(plot.left - 3, xOf(trace.start[i]));
  const right = Math.min(plot.left + plot.width + 3, xOf(trace.end(i)));
  return { x, y, width: Math.max(2, right - x), height: lane.height };
}

function drawChosen() {
  for (const [i, width] of [[chosen.hover, 1.5], [chosen.span, 2.5]]) {
    const box = i === NONE ? null : boxOf(i);
    if (!box) continue;
    pen.lineWidth = width;
    pen.strokeStyle = i === chosen.span ? paint.css.ink : paint.css["ink-2"];
    pen.strokeRect(box.x - .5, box.y + .5, box.width, box.height - 1);
  }
}
