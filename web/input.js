// Mouse and keyboard. The view follows the mouse directly, and moves in a short animation for keys and links.
"use strict";

const MIN_SHOWN = 100;  // picoseconds

function limited(t0, t1) {
  const all = trace.last - trace.first;
  const length = Math.max(MIN_SHOWN, Math.min(t1 - t0, all * 1.1));
  const middle = (t0 + t1) / 2;
  const low = trace.first - all * .05, high = trace.last + all * .05;
  const start = Math.max(low, Math.min(middle - length / 2, high - length));
  return [start, start + length];
}

function setView(t0, t1) {
  glide.stop();
  [view.t0, view.t1] = limited(t0, t1);
  requestDraw();
}

const glide = {
  frame: 0,
  goal: null,
  stop() {
    cancelAnimationFrame(this.frame);
    this.goal = null;
  },
  to(t0, t1) {
    const goal = limited(t0, t1);
    if (matchMedia("(prefers-reduced-motion: reduce)").matches) return setView(...goal);
    const from = [view.t0, view.t1], begin = performance.now();
    this.stop();
    this.goal = goal;
    const step = (now) => {
      const part = Math.min(1, Math.max(0, now - begin) / 160), eased = 1 - (1 - part) ** 3;
      view.t0 = from[0] + (goal[0] - from[0]) * eased;
      view.t1 = from[1] + (goal[1] - from[1]) * eased;
      draw();
      if (part < 1) this.frame = requestAnimationFrame(step);
      else this.goal = null;
    };
    this.frame = requestAnimationFrame(step);
  },
};

// The view at the end of the animation. Keys start from it, so that several key presses during one animation add up.
function goalView() {
  return glide.goal || [view.t0, view.t1];
}

function zoomBy(factor) {
  const [t0, t1] = goalView();
  const middle = chosen.span !== NONE && trace.end(chosen.span) > t0 && trace.start[chosen.span] < t1
    ? Math.max(t0, Math.min(t1, trace.start[chosen.span] + trace.duration[chosen.span] / 2)) : (t0 + t1) / 2;
  glide.to(middle - (middle - t0) * factor, middle + (t1 - middle) * factor);
}

function panBy(part) {
  const [t0, t1] = goalView();
  glide.to(t0 + (t1 - t0) * part, t1 + (t1 - t0) * part);
}

function fitAll() {
  const edge = (trace.last - trace.first) * .01;
  glide.to(trace.first - edge, trace.last + edge);
}

// Moves the view so that all of these ops are visible.
function showSpans(spans) {
  let t0 = Infinity, t1 = -Infinity;
  for (const i of spans) {
    t0 = Math.min(t0, trace.start[i]);
    t1 = Math.max(t1, trace.end(i));
  }
  const edge = Math.max((t1 - t0) * .25, 1000);
  glide.to(t0 - edge, t1 + edge);
}

// Selects an op; `move` brings it into view, and zooms in if it would be too small to see.
function select(i, move) {
  chosen.span = i;
  showOp(i);
  if (i === NONE) return requestDraw();
  if (move) openTab("op");
  const lane = layout.lanes[layout.laneOf[i]];
  if (layout.collapsed.delete(trace.deviceOf(i))) placeTracks();
  const room = plot.height - SIZES.ruler;
  if (lane.y < view.y || lane.y + lane.height > view.y + room) view.y = lane.y - room / 3;
  if (move) {
    const [t0, t1] = goalView();
    const tiny = trace.duration[i] < (t1 - t0) / plot.width * 6;
    const length = tiny ? Math.max(trace.duration[i] * 30, MIN_SHOWN) : t1 - t0;
    const middle = trace.start[i] + trace.duration[i] / 2;
    if (tiny || trace.start[i] < t0 || trace.end(i) > t1) {
      const wide = Math.max(length, trace.duration[i] * 1.2);
      glide.to(middle - wide / 2, middle + wide / 2);
    }
  }
  requestDraw();
}

function switchTracks(mode) {
  useLayout(mode);
  spreadHits();
  for (const name of ["stream", "engine"])
    document.getElementById(`by-${name}`).setAttribute("aria-pressed", String(name === mode));
  if (chosen.span !== NONE) select(chosen.span, false);
  requestDraw();
}

function pointOf(event) {
  const box = canvas.getBoundingClientRect();
  return { x: event.clientX - box.left, y: event.clientY - box.top };
}

function opUnder({ x, y }) {
  if (x < plot.left || y < SIZES.ruler) return NONE;
  return opAt(y - SIZES.ruler + view.y, timeAt(x), plot.scale * 3);
}

function showTip(i, { x, y }) {
  const tip = document.getElementById("tip");
  tip.hidden = i === NONE;
  canvas.classList.toggle("over", i !== NONE);
  if (i === NONE) return;
  tip.replaceChildren(make("div", { class: "name" }, trace.nameOf(i)),
    make("div", { class: "more" }, `${timeText(trace.duration[i])} \u00b7 ${trace.meta.engines[trace.engine[i]]} \u00b7 `
      + streamText(trace.stream[i])));
  const box = tip.getBoundingClientRect(), stage = tip.parentElement.getBoundingClientRect();
  tip.style.left = `${Math.max(4, Math.min(x + 14, stage.width - box.width - 6))}px`;
  const top = y + canvas.offsetTop + 18;
  tip.style.top = `${top + box.height > stage.height ? top - box.height - 30 : top}px`;
}

function onWheel(event) {
  event.preventDefault();
  if (event.shiftKey) {
    view.y += event.deltaY || event.deltaX;
    return requestDraw();
  }
  if (Math.abs(event.deltaX) > Math.abs(event.deltaY)) {
    const move = event.deltaX * plot.scale;
    return setView(view.t0 + move, view.t1 + move);
  }
  const { x } = pointOf(event);
  const at = timeAt(Math.max(plot.left, x));
  const factor = Math.exp(Math.max(-1, Math.min(1, event.deltaY / 400)));
  setView(at - (at - view.t0) * factor, at + (view.t1 - at) * factor);
}

function toggleDevice(y) {
  const at = y - SIZES.ruler + view.y;
  const header = layout.headers.find((h) => at >= h.y && at < h.y + SIZES.device);
  if (!header || y < SIZES.ruler) return false;
  if (!layout.collapsed.delete(header.device)) layout.collapsed.add(header.device);
  placeTracks();
  requestDraw();
  return true;
}

function listenToMouse() {
  let held = null;
  canvas.addEventListener("wheel", onWheel, { passive: false });
  canvas.addEventListener("pointerdown", (event) => {
    if (event.button !== 0) return;
    held = { ...pointOf(event), t0: view.t0, t1: view.t1, top: view.y, moved: false };
    canvas.setPointerCapture(event.pointerId);
  });
  canvas.addEventListener("pointermove", (event) => {
    const point = pointOf(event);
    if (!held) {
      chosen.hover = opUnder(point);
      showTip(chosen.hover, point);
      return requestDraw();
    }
    if (!held.moved && Math.hypot(point.x - held.x, point.y - held.y) < 4) return;
    held.moved = true;
    canvas.classList.add("drag");
    showTip(NONE, point);
    const move = (held.x - point.x) * (held.t1 - held.t0) / plot.width;
    view.y = held.top + held.y - point.y;
    setView(held.t0 + move, held.t1 + move);
  });
  canvas.addEventListener("pointerup", (event) => {
    const point = pointOf(event);
    canvas.classList.remove("drag");
    if (held && !held.moved && !toggleDevice(point.y)) {
      const i = opUnder(point);
      select(i, false);
      if (i !== NONE) openTab("op");
    }
    held = null;
  });
  canvas.addEventListener("pointerleave", (event) => { chosen.hover = NONE; showTip(NONE, pointOf(event)); requestDraw(); });
  canvas.addEventListener("dblclick", (event) => {
    const i = opUnder(pointOf(event));
    if (i !== NONE) showSpans([i]);
  });
  const moveTo = (event) => {
    const box = strip.getBoundingClientRect();
    const at = trace.first + (event.clientX - box.left) / box.width * (trace.last - trace.first);
    const half = (view.t1 - view.t0) / 2;
    setView(at - half, at + half);
  };
  strip.addEventListener("pointerdown", (event) => { strip.setPointerCapture(event.pointerId); moveTo(event); });
  strip.addEventListener("pointermove", (event) => { if (event.buttons & 1) moveTo(event); });
}
