// Search: finds the ops whose name, source file or kind contains all words. Each distinct text is compared once, not once
// for each op.
"use strict";

const search = { text: "", active: false, hits: new Uint32Array(0), at: NONE };

function matches(text, words) {
  const low = text.toLowerCase();
  return words.every((word) => low.includes(word));
}

// For each text 1 if it matches, otherwise 0.
function flagsOf(texts, words) {
  return Uint8Array.from(texts, (text) => (matches(text, words) ? 1 : 0));
}

function runSearch(text) {
  const words = text.toLowerCase().split(/\s+/).filter((word) => word !== "");
  Object.assign(search, { text, active: words.length > 0, at: NONE });
  const hits = [];
  if (search.active) {
    const names = flagsOf(trace.meta.names, words), files = flagsOf(trace.meta.files, words);
    const kinds = flagsOf(trace.meta.foreign ? [] : trace.meta.kinds, words);
    const file = trace.column("span.file"), kind = trace.column("span.kind");
    for (let i = 0; i < trace.count; i++) {
      if (names[trace.name[i]] || files[file[i]] || kinds[kind[i]]) hits.push(i);
    }
  }
  search.hits = Uint32Array.from(hits);
  spreadHits();
  showHits();
  requestDraw();
}

// Gives each lane its own list of hits, so that they are drawn with its ops.
function spreadHits() {
  const counts = new Uint32Array(layout.lanes.length);
  for (const i of search.hits) counts[layout.laneOf[i]]++;
  layout.lanes.forEach((lane, k) => { lane.hits = search.active ? new Uint32Array(counts[k]) : null; });
  counts.fill(0);
  for (const i of search.hits) layout.lanes[layout.laneOf[i]].hits[counts[layout.laneOf[i]]++] = i;
}

function showHits() {
  const count = search.hits.length.toLocaleString("en");
  const label = document.getElementById("hits");
  if (!search.active) label.textContent = "";
  else if (search.hits.length === 0) label.textContent = "no hit";
  else label.textContent = search.at === NONE ? `${count} hits` : `${(search.at + 1).toLocaleString("en")} of ${count}`;
}

// Selects the next or previous hit after the selected op; wraps around at the ends.
function stepHit(step) {
  const count = search.hits.length;
  if (count === 0) return;
  if (search.at === NONE) {
    const from = chosen.span === NONE ? lowerBound(search.hits, 0, count, (i) => trace.end(i) >= view.t0)
      : lowerBound(search.hits, 0, count, (i) => i > chosen.span);
    search.at = ((step > 0 ? from : from - 1) + count) % count;
  } else {
    search.at = (search.at + step + count) % count;
  }
  showHits();
  goTo(search.hits[search.at]);
}
