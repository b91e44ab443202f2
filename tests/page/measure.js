// Times a page in Chromium: node measure.js PAGE [REPEAT [SECONDS]]. Prints one line of JSON:
// {"open_ms": [...], "fps": {"what": [...], ...}}. The rate counts full drawings while the view moves in every frame.
import { launch, open } from "./browser.js";

const [file, repeat = "3", seconds = "2"] = process.argv.slice(2);

// Drawings a second while the view moves: `part` of the trace is in view, or the view zooms from all of it to that part.
function moved([part, zooming, length]) {
  return new Promise((done) => {
    const { first, last } = window.slip.trace;
    const all = last - first;
    const before = window.slip.state().frames;
    let begin = null;
    const step = (now) => {
      if (begin === null) begin = now;
      if (now - begin >= length * 1000) return done((window.slip.state().frames - before) / (now - begin) * 1000);
      const phase = (now - begin) / (length * 1000);
      const shown = zooming ? all * part ** Math.abs(2 * phase - 1) : all * part;
      const start = zooming ? all * .4 - shown * .4 : first + (all - shown) * (.1 + .8 * phase * Math.min(1, part * 50));
      window.slip.view(start, start + shown);
      requestAnimationFrame(step);
    };
    requestAnimationFrame(step);
  });
}

const WAYS = { "pan, all in view": [.9, false], "pan, a hundredth": [.01, false], "pan, a ten thousandth": [.0001, false],
  "zoom from all to a millionth": [.000001, true] };

const browser = await launch();
const result = { open_ms: [], fps: {} };
for (let k = 0; k < Number(repeat); k++) {
  const begin = performance.now();
  const { page, complaints } = await open(browser, file);
  result.open_ms.push(performance.now() - begin);
  for (const [name, way] of Object.entries(WAYS)) {
    const fps = await page.evaluate(moved, [...way, Number(seconds)]);
    (result.fps[name] ||= []).push(fps);
  }
  if (complaints.length > 0) throw new Error(complaints.join("; "));
  await page.context().close();
}
await browser.close();
console.log(JSON.stringify(result));
