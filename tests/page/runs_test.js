// The pages of whole runs in Chromium: node runs_test.js SLIP (the program). A model with its prediction, collectives,
// the ranks of a job together, and a profile of PyTorch's.
import assert from "node:assert/strict";
import { execFileSync } from "node:child_process";
import { mkdtempSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { after, test } from "node:test";
import { launch, open } from "./browser.js";

const slip = process.argv[2];
const folder = mkdtempSync(join(tmpdir(), "slip_runs_"));
const file = (name) => join(folder, name);
const browser = await launch();
after(async () => {
  await browser.close();
  rmSync(folder, { recursive: true });
});

function run(words, variables = {}) {
  return execFileSync(slip, words, { encoding: "utf8", env: { ...process.env, ...variables } });
}

// Opens the page, runs `look`, and requires that the page had no error.
async function shown(name, look) {
  const { page, complaints, requests } = await open(browser, file(name));
  await look(page);
  assert.deepEqual(complaints, []);
  assert.deepEqual(requests, []);
  await page.context().close();
}

// Selects the first op whose name begins so, and returns the text of the panel.
async function choose(page, prefix) {
  const op = await page.evaluate((wanted) => {
    for (let i = 0; i < slip.trace.count; i++) if (slip.trace.nameOf(i).startsWith(wanted)) return i;
    return -1;
  }, prefix);
  assert.ok(op >= 0, `no op is called ${prefix}`);
  await page.evaluate((i) => slip.select(i), op);
  return page.locator("#panel-op").innerText();
}

test("the demo: predictions under the run, loads that are loads", async () => {
  run(["model", "stack", "--blocks", "2", "--hidden", "256", "--intermediate", "256", "--tokens", "2", "-o", file("model")]);
  run(["plan", file("model"), "--device", "sim:h200", "--save-costs", file("costs.json")]);
  const reported = JSON.parse(run(["run", file("model"), "--costs", file("costs.json"), "--stream-all", "--steps", "3",
    "--json", "--html", file("run.html")]));
  await shown("run.html", async (page) => {
    const text = await choose(page, "load ");
    assert.match(text, /copy in/);
    assert.match(text, /load by the host/);
    assert.match(text, /predicted and measured/i);
    assert.doesNotMatch(text, /other tools|undefined|no such op/);
    const overlap = await page.evaluate(() => slip.trace.meta.figures[0]);
    assert.ok(Math.abs(100 * overlap.overlapped / overlap.copy - reported[0].overlap_percent) < .01);
    assert.match(await page.locator("#legend").innerText(), /copy in/);
  });
});

test("a collective is communication, with a colour and figures of its own", async () => {
  run(["lab", "deadlock", "--quick", "--device", "sim:h200", "--html", file("deadlock.html")]);
  await shown("deadlock.html", async (page) => {
    const text = await choose(page, "all_reduce");
    assert.match(text, /communication/);
    assert.match(text, /exchange/);
    assert.doesNotMatch(text, /undefined/);
    assert.match(await page.locator("#legend").innerText(), /communication/);
    assert.match(await page.locator("#cards").innerText(), /Communication/);
    const colours = await page.evaluate(() => new Set(slip.trace.meta.engines.map((_, k) => paint.colours[k * TONES.length])).size);
    assert.equal(colours, 6, "each engine has its own");
    await page.keyboard.press("t");  // by engine
    const tracks = await page.evaluate(() => layout.tracks.map((track) => track.label));
    assert.ok(tracks.includes("communication"), tracks.join());
  });
});

test("the ranks of a job are groups of tracks", async () => {
  run(["launch", "-n", "2", "--timeout", "100", "--", slip, "bench", "all_reduce", "-b", "1KiB", "-e", "1KiB", "-w", "1",
    "--iters", "2"], { SLIP_TRACE: file("job.json") });
  run(["view", file("job.0.json"), file("job.1.json")]);
  await shown("job.html", async (page) => {
    const groups = await page.evaluate(() => layout.headers.map(({ device }) => deviceText(device)));
    assert.deepEqual(groups, ["rank 0", "rank 1"]);
    assert.match(await choose(page, "all_reduce"), /rank 0|rank 1/);
  });
});

test("a profile: launches lead to kernels, steps are not on the critical path", async () => {
  const event = (cat, name, pid, tid, ts, dur, correlation) => ({ ph: "X", cat, name, pid, tid, ts, dur, args: { correlation } });
  writeFileSync(file("profile.json"), JSON.stringify({ traceEvents: [
    event("user_annotation", "ProfilerStep#1", 99, 1, 0, 900),
    event("cuda_runtime", "cudaLaunchKernel", 99, 1, 10, 5, 1), event("cuda_runtime", "cudaLaunchKernel", 99, 1, 20, 5, 2),
    event("kernel", "gemm", 0, 7, 30, 100, 1), event("kernel", "relu", 0, 7, 130, 40, 2)] }));
  execFileSync("gzip", [file("profile.json")]);
  run(["view", file("profile.json.gz")]);
  await shown("profile.html", async (page) => {
    assert.match(await choose(page, "relu"), /A dependency[^]*gemm/);
    const critical = await page.evaluate(() => [...slip.trace.column("critical")].map((i) => slip.trace.nameOf(i)));
    assert.ok(critical.includes("relu") && !critical.includes("ProfilerStep#1"), critical.join());
    assert.equal(await page.evaluate(() => slip.trace.column("arrow.from").length), 2);
  });
});
