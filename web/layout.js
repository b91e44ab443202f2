// Where ops are drawn: tracks (a stream, or an engine of a device), and in each track lanes in which no two ops overlap.
// The ops of a lane are sorted by start and, because they do not overlap, by end. Two binary searches find the visible ones.
"use strict";

const SIZES = { gutter: 190, ruler: 26, device: 24, gap: 6, lane: 22, thinLane: 15, thinFrom: 7, predicted: 8 };
const MAX_LANES = 200;  // of one track. Further overlapping ops go into the last lane: there they hide each other

const layout = {
  mode: "stream",
  tracks: [],      // {label, device, engine, lanes, collapsed, y, height}
  lanes: [],       // {list, hits, predicted, track, y, height}
  laneOf: null,    // by op: index in lanes
  height: 0,
  collapsed: new Set(),  // devices
};

function trackNames(mode) {
  if (mode === "stream") return (i) => trace.stream[i];
  const engines = trace.meta.engines.length;
  return (i) => trace.deviceOf(i) * engines + trace.engine[i];
}

// Puts each op, in the order of starts, into the first free lane of its track. So nested ops look like a flame graph.
function assignLanes(trackOf) {
  const laneOf = new Uint32Array(trace.count);
  const tracks = new Map();
  let lanes = 0;
  for (let i = 0; i < trace.count; i++) {
    const key = trackOf(i);
    let track = tracks.get(key);
    if (!track) tracks.set(key, track = { key, first: i, ends: [], numbers: [], counts: [] });
    const { ends, numbers, counts } = track;
    const start = trace.start[i];
    let lane = 0;
    while (lane < ends.length && ends[lane] > start) lane++;
    if (lane === ends.length) {
      if (lane === MAX_LANES) lane = MAX_LANES - 1;
      else { ends.push(0); counts.push(0); numbers.push(lanes++); }
    }
    ends[lane] = Math.max(ends[lane], start + trace.duration[i]);
    counts[lane]++;
    laneOf[i] = numbers[lane];
  }
  return { laneOf, tracks: [...tracks.values()], count: lanes };
}

function fillLanes(laneOf, counts, members, laneFor) {
  const lists = counts.map((count) => new Uint32Array(count));
  const filled = new Uint32Array(counts.length);
  for (let k = 0; k < members.length; k++) {
    const lane = laneFor(k);
    lists[lane][filled[lane]++] = members[k];
  }
  return lists;
}

function trackLabel(mode, span) {
  if (mode === "stream") return streamText(trace.stream[span]);
  return trace.meta.engines[trace.engine[span]];
}

function byDevice(a, b) {
  return a.device - b.device || a.order - b.order;
}

const builtLayouts = new Map();

function buildLayout(mode) {
  const { laneOf, tracks, count } = assignLanes(trackNames(mode));
  const counts = new Array(count);
  for (const track of tracks) track.numbers.forEach((lane, k) => { counts[lane] = track.counts[k]; });
  const all = new Uint32Array(trace.count);
  for (let i = 0; i < all.length; i++) all[i] = i;
  const lists = fillLanes(laneOf, counts, all, (k) => laneOf[k]);
  const lanes = lists.map((list) => ({ list, hits: null, predicted: null, y: 0, height: 0 }));
  const made = tracks.map((track) => ({
    label: trackLabel(mode, track.first),
    device: trace.deviceOf(track.first),
    engine: trace.engine[track.first],
    order: track.key,
    lanes: track.numbers.map((lane) => lanes[lane]),
  }));
  made.sort(byDevice);
  if (trace.meta.prediction) addPredicted(lanes, laneOf);
  const critical = trace.column("critical");
  if (critical.length > 0) {
    const own = criticalLanes(Uint32Array.from(critical).sort());
    lanes.push(...own);
    made.unshift({ label: "critical path", device: NONE, engine: 0, lanes: own, critical: true });
  }
  return { mode, laneOf, lanes, tracks: made };
}

// The lanes of the critical path: one, or several if ops overlap because their devices have different clocks.
function criticalLanes(spans) {
  const lists = [];
  for (const i of spans) {
    let list = lists.find((one) => trace.end(one[one.length - 1]) <= trace.start[i]);
    if (!list && lists.length === MAX_LANES) list = lists[0];
    if (list) list.push(i);
    else lists.push([i]);
  }
  return lists.map((list) => ({ list: Uint32Array.from(list), hits: null, predicted: null, y: 0, height: 0 }));
}

// The predicted run of each lane's ops: rows of the prediction columns, by predicted start.
function addPredicted(lanes, laneOf) {
  const spans = trace.column("prediction.span");
  const counts = new Array(lanes.length).fill(0);
  const rows = new Uint32Array(spans.length);
  spans.forEach((span, row) => { counts[laneOf[span]]++; rows[row] = row; });
  const lists = fillLanes(laneOf, counts, rows, (k) => laneOf[spans[k]]);
  lanes.forEach((lane, k) => { lane.predicted = lists[k]; });
}

function useLayout(mode) {
  if (!builtLayouts.has(mode)) builtLayouts.set(mode, buildLayout(mode));
  const { laneOf, lanes, tracks } = builtLayouts.get(mode);
  Object.assign(layout, { mode, laneOf, lanes, tracks });
  placeTracks();
}

// Computes y and height of tracks and lanes, from the top of the first track.
function placeTracks() {
  let y = SIZES.gap / 2, device = null;
  layout.headers = [];
  const predictedHeight = trace.meta.prediction ? SIZES.predicted : 0;
  for (const track of layout.tracks) {
    if (track.device !== device && track.device !== NONE) {
      layout.headers.push({ device: track.device, y });
      y += SIZES.device;
    }
    device = track.device;
    track.hidden = layout.collapsed.has(device);
    track.y = y;
    const height = track.lanes.length >= SIZES.thinFrom ? SIZES.thinLane : SIZES.lane;
    for (const lane of track.lanes) {
      lane.y = y;
      lane.height = track.hidden ? 0 : height;
      if (!track.hidden) y += height + (lane.predicted ? predictedHeight : 0);
    }
    track.height = y - track.y;
    if (!track.hidden) y += SIZES.gap;
  }
  layout.height = y + SIZES.gap;
}

// Indices [from, to) of the lane's list that touch the times [t0, t1].
function visible(list, t0, t1) {
  const from = lowerBound(list, 0, list.length, (i) => trace.start[i] + trace.duration[i] >= t0);
  const to = lowerBound(list, from, list.length, (i) => trace.start[i] > t1);
  return [from, to];
}

// The op at a height and a time, or the nearest within `slop` of time; NONE if there is none.
function opAt(y, time, slop) {
  const lane = layout.lanes.find((l) => l.height > 0 && y >= l.y && y < l.y + l.height);
  if (!lane) return NONE;
  const [from, to] = visible(lane.list, time - slop, time + slop);
  let best = NONE, distance = Infinity;
  for (let k = from; k < Math.min(to, from + 1000); k++) {
    const i = lane.list[k];
    const away = Math.max(0, trace.start[i] - time, time - trace.end(i));
    if (away < distance) { best = i; distance = away; }
  }
  return best;
}

// The op `step` positions later in the same lane; NONE if there is none.
function neighbour(i, step) {
  const list = layout.lanes[layout.laneOf[i]].list;
  const at = lowerBound(list, 0, list.length, (k) => k >= i) + step;
  return at >= 0 && at < list.length ? list[at] : NONE;
}
