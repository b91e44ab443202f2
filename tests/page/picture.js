// Takes a picture of a page with an op selected: node picture.js PAGE PNG OP STREAM [light|dark].
import { launch, open, settled } from "./browser.js";

const [file, png, op, stream, theme = "light"] = process.argv.slice(2);
const browser = await launch();
const { page, complaints } = await open(browser, file, { colorScheme: theme, viewport: { width: 1440, height: 820 } });
await page.evaluate(([name, where]) => {
  for (let i = 0; i < slip.trace.count; i++) {
    if (slip.op(i).name === name && slip.op(i).stream === where) return slip.select(i);
  }
  throw new Error(`no op ${name} in ${where}`);
}, [op, stream]);
await settled(page);
await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
await page.screenshot({ path: png });
await browser.close();
if (complaints.length > 0) throw new Error(complaints.join("; "));
