// The data of the page: columns of numbers (one value an op; times in picoseconds from the first start) and tables of
// texts. There is no object per op: an op is its index in the order of starts. Names are inserted as text, never as HTML.
"use strict";

const NONE = -1;

const trace = (() => {
  const take = (id) => {
    const element = document.getElementById(id);
    const text = element.textContent;
    element.remove();
    return text;
  };
  const bytesOf = (text) => {
    if (Uint8Array.fromBase64) return Uint8Array.fromBase64(text);
    const raw = atob(text);
    const bytes = new Uint8Array(raw.length);
    for (let i = 0; i < raw.length; i++) bytes[i] = raw.charCodeAt(i);
    return bytes;
  };
  const meta = JSON.parse(take("slip-data"));
  const buffer = bytesOf(take("slip-columns")).buffer;
  const types = { u8: Uint8Array, u16: Uint16Array, u32: Uint32Array, f64: Float64Array };

  const decode = (key) => {
    const place = meta.columns[key];
    if (!place) return new Uint8Array(0);
    const { type, at, count, base, scale } = place;
    if (type === "same") return base === 0 ? new Uint8Array(count) : new Float64Array(count).fill(base);
    const stored = new types[type](buffer, at, count);
    if (base === 0 && scale === 1) return stored;
    const values = new Float64Array(count);
    for (let i = 0; i < count; i++) values[i] = base + scale * stored[i];
    return values;
  };
  const decoded = new Map();
  const column = (key) => {
    if (!decoded.has(key)) decoded.set(key, decode(key));
    return decoded.get(key);
  };

  const result = {
    meta,
    count: meta.spans,
    column,
    start: column("span.start"),
    duration: column("span.duration"),
    name: column("span.name"),
    stream: column("span.stream"),
    engine: column("span.engine"),
    end: (i) => result.start[i] + result.duration[i],
    nameOf: (i) => meta.names[result.name[i]],
    deviceOf: (i) => meta.streams[result.stream[i]].device,
    // The last op that had to end before `i` could start; NONE: unknown.
    after: (i) => column("span.after")[i] - 1,
    first: 0,
    last: 1,
  };
  for (let i = 0; i < result.count; i++) {
    const end = result.start[i] + result.duration[i];
    if (end > result.last) result.last = end;
  }
  return result;
})();

// By op: its row in the prediction columns, or NONE.
trace.prediction = (() => {
  let rows = null;
  return (i) => {
    if (!rows) {
      rows = new Int32Array(trace.count).fill(NONE);
      trace.column("prediction.span").forEach((span, row) => { rows[span] = row; });
    }
    return rows[i];
  };
})();

// By op: indices into meta.findings. A Map, because few ops have findings.
trace.findings = new Map();
trace.meta.findings.forEach((finding, number) => {
  for (const span of finding.spans) {
    if (!trace.findings.has(span)) trace.findings.set(span, []);
    trace.findings.get(span).push(number);
  }
});

trace.marked = Uint32Array.from(trace.findings.keys()).sort();

trace.isCritical = (() => {
  let flags = null;
  return (i) => {
    if (!flags) {
      flags = new Uint8Array(trace.count);
      for (const span of trace.column("critical")) flags[span] = 1;
    }
    return flags[i] === 1;
  };
})();

// Reads and writes of an op: {buffer, offset, bytes}. The columns hold all reads first, then all writes.
trace.ranges = (() => {
  let firstRead = null, firstWrite = null;
  const starts = (counts, from) => {
    const first = new Float64Array(trace.count + 1);
    first[0] = from;
    for (let i = 0; i < trace.count; i++) first[i + 1] = first[i] + counts[i];
    return first;
  };
  const list = (first, i) => {
    const ranges = [];
    for (let k = first[i]; k < first[i + 1]; k++) {
      const buffer = trace.column("range.buffer")[k];
      ranges.push({
        buffer: buffer > 0 ? trace.meta.buffers[buffer - 1] : null,
        offset: trace.column("range.offset")[k],
        bytes: trace.column("range.bytes")[k],
      });
    }
    return ranges;
  };
  return (i) => {
    if (!firstRead) {
      firstRead = starts(trace.column("span.reads"), 0);
      firstWrite = starts(trace.column("span.writes"), firstRead[trace.count]);
    }
    return { reads: list(firstRead, i), writes: list(firstWrite, i) };
  };
})();

// First index of list[from, to) for which test(element) holds; the test is false, then true.
function lowerBound(list, from, to, test) {
  while (from < to) {
    const middle = (from + to) >>> 1;
    if (test(list[middle])) to = middle;
    else from = middle + 1;
  }
  return from;
}

const TIME_UNITS = [[1e12, "s"], [1e9, "ms"], [1e6, "\u00b5s"], [1e3, "ns"], [1, "ps"]];

// A time with its unit and four digits.
function timeText(picos) {
  if (picos === 0) return "0";
  const size = Math.abs(picos);
  const [unit, word] = TIME_UNITS.find(([min]) => size >= min) || TIME_UNITS[4];
  const value = picos / unit;
  const digits = Math.abs(value) >= 1000 ? 0 : Math.abs(value) >= 100 ? 1 : Math.abs(value) >= 10 ? 2 : 3;
  return `${Number(value.toFixed(unit === 1 ? 0 : digits))} ${word}`;
}

// A point in time, with as many digits as are needed to compare it with an interval of `length`.
function momentText(picos, length) {
  if (picos === 0) return "0";
  const [unit, word] = TIME_UNITS.find(([min]) => Math.abs(picos) >= min) || TIME_UNITS[4];
  const digits = Math.max(0, Math.min(Math.log10(unit), Math.ceil(Math.log10(100 * unit / Math.max(length, 1)))));
  return `${(picos / unit).toFixed(digits)} ${word}`;
}

// A time in whole picoseconds.
function exactTime(picos) {
  return `${Math.round(picos).toLocaleString("en").replaceAll(",", "\u202f")} ps`;
}

function bytesText(bytes) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let at = 0;
  while (bytes >= 1024 && at < 4) { bytes /= 1024; at++; }
  return `${Number(bytes.toFixed(bytes >= 100 ? 0 : 2))} ${units[at]}`;
}

function countText(value, unit) {
  const units = [[1e15, "P"], [1e12, "T"], [1e9, "G"], [1e6, "M"], [1e3, "k"]];
  const [size, letter] = units.find(([min]) => value >= min) || [1, ""];
  return `${Number((value / size).toPrecision(4))} ${letter}${unit}`;
}

// In traces of other programs a stream is named "process / thread". If all streams of a device have the same process, the
// device is named after it.
const deviceNames = (() => {
  const names = new Map();
  const used = new Set(trace.stream);
  trace.meta.streams.forEach(({ device, name }, number) => {
    if (!used.has(number)) return;
    const at = name.indexOf(" / ");
    const prefix = at > 0 ? name.slice(0, at) : "";
    names.set(device, !names.has(device) || names.get(device) === prefix ? prefix : "");
  });
  return names;
})();

// In a merged trace a device is named by its rank and, if the rank has several, by its id in the rank's own trace.
function deviceText(device) {
  const merged = trace.meta.devices.find(({ id }) => id === device);
  if (!merged) return deviceNames.get(device) || `device ${device}`;
  const alone = trace.meta.devices.filter(({ rank }) => rank === merged.rank).length === 1;
  return `rank ${merged.rank}${alone ? "" : `, device ${merged.id_there}`}`;
}

function streamText(number) {
  const { id, device, name } = trace.meta.streams[number];
  const prefix = deviceNames.get(device);
  return (prefix ? name.slice(prefix.length + 3) : name) || `stream ${id}`;
}
