// The timeline page in Chromium, driven by mouse and keyboard: node page_test.js SLIP (the program). The labs write the
// traces in virtual time, so that every figure is known; some are changed here before `slip view` reads them.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { launch, open, settled, whereIs } from "./browser.js";

const slip = process.argv[2];
const folder = mkdtempSync(join(tmpdir(), "slip_page_"));
const file = (name) => join(folder, name);
const browser = await launch();
after(async () => {
  await browser.close();
  rmSync(folder, { recursive: true });
});

function run(...words) {
  return execFileSync(slip, words, { encoding: "utf8" });
}

const plain = file("weights.json");
run("lab", "weights", "--device", "sim:h200", "--quick", "--trace", plain, "--html", file("lab.html"));

// The lab's trace. Numbers beyond 2^53, which JSON.parse would round, are kept as strings.
function load() {
  return JSON.parse(readFileSync(plain, "utf8").replace(/(?<=[:,[])\d{17,}(?=[,}\]])/g, '"big $&"'));
}

function save(name, whole) {
  writeFileSync(file(name), JSON.stringify(whole).replace(/"big (\d+)"/g, "$1"));
}

// A page of the lab's trace after `change(events, whole)`.
function changed(name, change) {
  const whole = load();
  whole.traceEvents = change(whole.traceEvents, whole) || whole.traceEvents;
  save(`${name}.json`, whole);
  run("view", file(`${name}.json`));
  return file(`${name}.html`);
}

function ops() {
  return load().traceEvents.filter((e) => e.ph === "X" && e.pid > 0);
}

async function clean({ complaints, requests, page }) {
  assert.deepEqual(complaints, []);
  assert.deepEqual(requests, []);
  await page.context().close();
}

const find = (page, name, nth = 0) => page.evaluate(([wanted, skip]) => {
  for (let i = 0; i < slip.trace.count; i++) if (slip.trace.nameOf(i) === wanted && skip-- === 0) return i;
  return -1;
}, [name, nth]);

test("it opens with all ops and asks for nothing else", async () => {
  const tab = await open(browser, file("lab.html"));
  assert.equal(await tab.page.evaluate(() => slip.trace.count), ops().length);
  assert.match(await tab.page.title(), /slip lab weights on sim:h200/);
  assert.match(await tab.page.locator("#cards").innerText(), /Overlap\s+[\d.]+ %/);
  await clean(tab);
});

test("the page shows what the file says, to the picosecond", async () => {
  run("view", plain, "-o", file("exact.html"));
  const tab = await open(browser, file("exact.html"));
  const shown = await tab.page.evaluate(() => Array.from({ length: slip.trace.count }, (_, i) => {
    const op = slip.op(i);
    return `${op.name} ${op.engine} ${Math.round(op.duration)}`;
  }));
  const written = ops().map((e) => `${e.name} ${e.cat} ${Math.round(e.dur * 1e6)}`);
  assert.deepEqual(shown.sort(), written.sort());
  await clean(tab);
});

test("keys and wheel zoom, keys and drag move, F shows all again", async () => {
  const tab = await open(browser, file("lab.html"));
  const { page } = tab;
  const length = (s) => s.t1 - s.t0;
  const all = await settled(page);
  await page.keyboard.press("w");
  const closer = await settled(page);
  assert.ok(length(closer) < length(all) * .7);
  await page.keyboard.press("d");
  const right = await settled(page);
  assert.ok(right.t0 > closer.t0 && Math.abs(length(right) - length(closer)) < length(all) * 1e-6);
  await page.keyboard.press("ArrowLeft");
  assert.ok((await settled(page)).t0 < right.t0);
  await page.keyboard.press("-");
  assert.ok(length(await settled(page)) > length(right));
  await page.keyboard.press("f");
  assert.ok(Math.abs(length(await settled(page)) - length(all)) < length(all) * .01);

  const box = await page.locator("#timeline").boundingBox();
  const at = { x: box.x + 600, y: box.y + 200 };
  const under = () => page.evaluate((x) => timeAt(x), at.x - box.x);
  await page.mouse.move(at.x, at.y);
  const before = await under();
  await page.mouse.wheel(0, -600);
  await page.waitForFunction((least) => slip.state().t1 - slip.state().t0 < least, length(all) * .7);
  assert.ok(Math.abs(await under() - before) < length(all) * 1e-3, "the wheel zooms at the cursor");
  const zoomed = await settled(page);
  await page.mouse.down();
  await page.mouse.move(at.x - 200, at.y, { steps: 5 });
  await page.mouse.up();
  const dragged = await settled(page);
  assert.ok(dragged.t0 > zoomed.t0);
  assert.equal(dragged.selected, -1, "a drag is no click");
  await clean(tab);
});

test("a click shows the op, why it started, and the way to the op it waited for", async () => {
  const tab = await open(browser, file("lab.html"));
  const { page } = tab;
  const op = await page.evaluate(() => {
    for (let i = 0; i < slip.trace.count; i++) {
      const before = slip.trace.nameOf(i) === "add 1" ? slip.trace.after(i) : -1;
      if (before >= 0 && slip.trace.nameOf(before) === "load 1") return i;
    }
    return -1;
  });
  await page.evaluate((i) => slip.select(i), op);  // there are many devices: scrolls to it
  await page.keyboard.press("Escape");
  assert.equal((await settled(page)).selected, -1);
  const point = await whereIs(page, op);
  await page.mouse.move(point.x, point.y);
  await page.waitForFunction((i) => slip.state().hover === i, op);
  assert.match(await page.locator("#tip").innerText(), /^add 1\s/);
  await page.mouse.click(point.x, point.y);
  assert.equal((await settled(page)).selected, op);
  assert.equal(await page.locator("#op-name").innerText(), "add 1");
  assert.match(await page.locator("#why").innerText(), /Why did it start now\? A dependency/);
  const before = await page.evaluate((i) => slip.trace.after(i), op);
  const link = page.locator("#why .link");
  assert.equal(await link.innerText(), await page.evaluate((i) => slip.trace.nameOf(i), before));
  await link.click();
  assert.equal((await settled(page)).selected, before);
  assert.ok(await page.evaluate(([a, b]) => slip.trace.end(a) <= slip.trace.start[b], [before, op]));
  await page.keyboard.press("Escape");
  assert.equal((await settled(page)).selected, -1);
  await clean(tab);
});

test("search finds ops by name and steps through them", async () => {
  const tab = await open(browser, file("lab.html"));
  const { page } = tab;
  const wanted = ops().filter((e) => e.name === "load 2").length;
  await page.keyboard.press("/");
  await page.keyboard.type("LOAD 2");
  await page.waitForFunction(() => document.getElementById("search").value === "LOAD 2");   // keys may arrive late
  assert.equal((await settled(page)).hits, wanted);
  await page.keyboard.press("Enter");
  const first = await settled(page);
  assert.equal(await page.locator("#op-name").innerText(), "load 2");
  assert.equal(await page.locator("#hits").innerText(), `1 of ${wanted}`);
  await page.locator("#timeline").focus();
  await page.keyboard.press("n");
  const second = await settled(page);
  assert.notEqual(second.selected, first.selected);
  assert.equal(await page.locator("#op-name").innerText(), "load 2");
  await page.keyboard.press("N");
  assert.equal((await settled(page)).selected, first.selected);
  await page.locator("#search").fill("no such op");
  assert.equal(await page.locator("#hits").innerText(), "no hit");
  await page.locator("#search").press("Escape");
  assert.equal((await settled(page)).hits, 0);
  await clean(tab);
});

test("T puts ops on engines and back, and keeps the chosen one in view", async () => {
  const tab = await open(browser, file("lab.html"));
  const { page } = tab;
  const op = await find(page, "load 3");
  await page.evaluate((i) => slip.select(i), op);
  await page.keyboard.press("t");
  assert.equal((await settled(page)).tracks, "engine");
  const point = await whereIs(page, op);
  await page.mouse.click(point.x, point.y);
  assert.equal((await settled(page)).selected, op);
  await page.keyboard.press("t");
  assert.equal((await settled(page)).tracks, "stream");
  await clean(tab);
});

test("findings are listed and drawn: a race where a wait was taken out", async () => {
  const html = changed("race", (events) => events.filter((e) => e.args?.record !== "event wait" && e.cat !== "edge"));
  const tab = await open(browser, html);
  const { page } = tab;
  const count = await page.evaluate(() => slip.trace.meta.findings.length);
  assert.ok(count > 0, "a wait less is a race");
  assert.match(await page.locator("#panel-findings").innerText(), /race[\s\S]*Nothing orders/);
  await page.locator("[data-finding='0'] .head .link").click();
  const state = await settled(page);
  assert.ok(await page.evaluate((i) => slip.trace.findings.has(i), state.selected));
  const red = await page.evaluate((i) => {
    const box = slip.where(i), canvas = document.getElementById("timeline");
    const [r, g, b] = canvas.getContext("2d").getImageData(box.x + 2, box.y + 3, 1, 1).data;
    return r > 150 && g < 110 && b < 110;
  }, state.selected);
  assert.ok(red, "the op carries its mark");
  await clean(tab);
});

const HOSTILE = ["</script><script>window.hurt=1;alert(1)</script>", "<img src=x onerror=\"window.hurt=1\">", "<!--<script>",
  "\"quoted\" 'twice' \\ back", "line\u2028and\u2029paragraph", "]]><svg onload=window.hurt=1>", "${window.hurt=1}",
  "\u202eright to left", "a\u0000nul", "\ud83d\ude80 rocket", "__proto__"];

test("hostile names are text, and nothing else", async () => {
  let next = 0;
  const given = new Set();
  const html = changed("hostile", (events, whole) => {
    const name = () => HOSTILE[next++ % HOSTILE.length];
    for (const e of events) {
      if (e.ph === "X" && e.pid > 0) given.add(e.name = name());
      if (e.ph === "M") e.args.name = name();
      if (e.args?.place) e.args.place = `${HOSTILE[0]}:7`;
    }
    for (const buffer of whole.slip.buffers) buffer.name = name();
  });
  const tab = await open(browser, html);
  const { page } = tab;
  assert.equal(given.size, HOSTILE.length);
  for (const name of given) {
    const op = await find(page, name);
    assert.notEqual(op, -1, `the page knows ${JSON.stringify(name)}`);
    await page.evaluate((i) => slip.select(i), op);
    await settled(page);
    assert.equal(await page.locator("#op-name").evaluate((e) => e.textContent), name);
    assert.equal(await page.evaluate(() => document.querySelectorAll("#side script, #side img, #side svg").length), 0);
    const point = await whereIs(page, op);
    await page.mouse.move(point.x, point.y);
  }
  assert.equal(await page.evaluate(() => window.hurt), undefined);
  assert.equal(await page.evaluate(() => document.querySelectorAll("img, iframe, object").length), 0);
  await clean(tab);
});

test("no script but the page's own runs, and nothing can be loaded", async () => {
  const { page, complaints } = await open(browser, file("lab.html"));
  const ran = await page.evaluate(async () => {
    const script = document.createElement("script");
    try { script.textContent = "window.hurt = 1"; } catch { /* refused at once */ }
    document.body.append(script);
    let fetched = "no";
    try { await fetch("data:text/plain,x"); fetched = "yes"; } catch { /* refused */ }
    let markup = "no";
    try { document.body.insertAdjacentHTML("beforeend", "<b>x</b>"); markup = "yes"; } catch { /* refused */ }
    return [window.hurt === 1, fetched, markup];
  });
  assert.deepEqual(ran, [false, "no", "no"]);
  assert.ok(complaints.length > 0, "the policy says so");
  await page.context().close();
});

test("light and dark, by the system and by the button", async () => {
  const ground = (page) => page.evaluate(() => getComputedStyle(document.body).backgroundColor);
  const shades = {};
  for (const colorScheme of ["light", "dark"]) {
    const tab = await open(browser, file("lab.html"), { colorScheme });
    assert.equal((await settled(tab.page)).theme, colorScheme);
    shades[colorScheme] = await ground(tab.page);
    await tab.page.locator("#theme").click();
    assert.notEqual(await ground(tab.page), shades[colorScheme]);
    await clean(tab);
  }
  assert.notEqual(shades.light, shades.dark);
});

test("a prediction lies under the measurement, op by op", async () => {
  // The measurement: every op a tenth longer than predicted.
  const slower = load();
  for (const e of slower.traceEvents) if (e.ph === "X" && e.pid > 0) e.dur = Number((e.dur * 1.1).toFixed(6));
  save("measured.json", slower);
  run("view", file("measured.json"), "--prediction", plain);
  const tab = await open(browser, file("measured.html"));
  const { page } = tab;
  assert.equal(await page.evaluate(() => slip.trace.meta.matched), ops().length);
  const op = await find(page, "load 1");
  await page.evaluate((i) => slip.select(i), op);
  const text = await page.locator("#prediction").innerText();
  assert.match(text, /predicted time\s+[\d.]+ \S+\s+measured time\s+[\d.]+ \S+\s+difference\s+[\d.]+ \S+ \(10 %\)/);
  const spans = await page.evaluate((i) => {
    const row = slip.trace.prediction(i);
    return [slip.trace.column("prediction.duration")[row], slip.trace.duration[i]];
  }, op);
  assert.ok(Math.abs(spans[1] / spans[0] - 1.1) < 1e-4);
  await clean(tab);
});

// As PyTorch's profiler writes it: host threads with nested ops, GPU streams, no submissions.
const FOREIGN = { schemaVersion: 1, traceEvents: [
  { ph: "M", name: "process_name", pid: 0, tid: 0, args: { name: "python3" } },
  { ph: "M", name: "thread_name", pid: 0, tid: 7, args: { name: "stream 7" } },
  { ph: "X", cat: "user_annotation", name: "ProfilerStep#1", pid: 99, tid: 1, ts: 1000, dur: 500 },
  { ph: "X", cat: "cpu_op", name: "aten::linear", pid: 99, tid: 1, ts: 1010, dur: 100.5 },
  { ph: "X", cat: "cpu_op", name: "aten::addmm", pid: 99, tid: 1, ts: 1020, dur: 50 },
  { ph: "X", cat: "kernel", name: "void gemm<float, 128>(float*)", pid: 0, tid: 7, ts: 1060, dur: 80 },
  { ph: "X", cat: "gpu_memcpy", name: "Memcpy HtoD", pid: 0, tid: 7, ts: 1000, dur: 20 },
] };

test("another program's trace opens, nested ops under each other", async () => {
  writeFileSync(file("foreign.json"), JSON.stringify(FOREIGN));
  run("view", file("foreign.json"));
  const tab = await open(browser, file("foreign.html"));
  const { page } = tab;
  assert.equal(await page.evaluate(() => slip.trace.count), 5);
  const heights = [];
  for (const name of ["ProfilerStep#1", "aten::linear", "aten::addmm"]) {
    const op = await find(page, name);
    const point = await whereIs(page, op);
    heights.push(point.y);
    await page.mouse.click(point.x, point.y);
    assert.equal(await page.locator("#op-name").innerText(), name);
    assert.match(await page.locator("#why").innerText(), /Unknown/);
  }
  assert.ok(heights[0] < heights[1] && heights[1] < heights[2]);
  const kernel = await page.evaluate((i) => slip.op(i), await find(page, "void gemm<float, 128>(float*)"));
  assert.deepEqual([kernel.engine, kernel.stream, kernel.duration], ["compute", "stream 7", 80e6]);
  await clean(tab);
});

test("export is a Chrome trace with the same ops", async () => {
  const tab = await open(browser, file("lab.html"));
  const [download] = await Promise.all([tab.page.waitForEvent("download"), tab.page.locator("#export").click()]);
  const events = JSON.parse(readFileSync(await download.path(), "utf8")).traceEvents.filter((e) => e.ph === "X");
  assert.deepEqual(events.map((e) => e.name).sort(), ops().map((e) => e.name).sort());
  await clean(tab);
});

test("a trace without ops opens, too", async () => {
  const tab = await open(browser, changed("empty", (events) => events.filter((e) => e.ph === "M")));
  assert.equal(await tab.page.evaluate(() => slip.trace.count), 0);
  await tab.page.keyboard.press("w");
  await clean(tab);
});
