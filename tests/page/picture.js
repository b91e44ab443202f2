// A picture of a page with an op chosen: node picture.js PAGE PNG [OP [light|dark]]. The op is named; the last of that
// name is taken.
import { launch, open, settled } from "./browser.js";

const [file, png, op = "add 2", theme = "light"] = process.argv.slice(2);
const browser = await launch();
const { page, complaints } = await open(browser, file, { colorScheme: theme, viewport: { width: 1440, height: 820 } });
await page.evaluate((name) => {
  for (let i = slip.trace.count - 1; i >= 0; i--) if (slip.trace.nameOf(i) === name) return slip.select(i);
}, op);
await settled(page);
await page.evaluate(() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done))));
await page.screenshot({ path: png });
await browser.close();
if (complaints.length > 0) throw new Error(complaints.join("; "));
