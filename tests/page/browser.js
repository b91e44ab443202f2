// Opens a page in Chromium and collects its errors.
import { existsSync } from "node:fs";
import { pathToFileURL } from "node:url";

export const SKIPPED = 77;
const FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];
const PLACES = [process.env.CHROMIUM, "/usr/bin/chromium", "/usr/bin/chromium-browser", "/usr/bin/google-chrome"];

export function skip(why) {
  console.log(`skipped: ${why}`);
  process.exit(SKIPPED);
}

// Exits with status 77 if no browser is installed.
export async function launch() {
  const program = PLACES.find((place) => place && existsSync(place));
  if (!program) skip("no chromium here (Debian: apt-get install chromium; or set CHROMIUM)");
  let playwright;
  try {
    playwright = await import("playwright-core");
  } catch (error) {
    skip(`playwright-core is not there (npm ci in tests/page): ${error.message}`);
  }
  return playwright.chromium.launch({ executablePath: program, headless: true, args: FLAGS });
}

// A tab that shows the file. Console errors, refused loads and dialogs end up in `complaints`, requests other than the
// file itself in `requests`.
export async function open(browser, file, options = {}) {
  const context = await browser.newContext({ viewport: { width: 1440, height: 860 }, ...options });
  const page = await context.newPage();
  const complaints = [], requests = [];
  const url = pathToFileURL(file).href;
  page.on("console", (message) => {
    if (message.type() === "error" || message.type() === "warning") complaints.push(message.text());
  });
  page.on("pageerror", (error) => complaints.push(String(error)));
  page.on("dialog", async (dialog) => { complaints.push(`dialog: ${dialog.message()}`); await dialog.dismiss(); });
  page.on("request", (request) => { if (request.url() !== url) requests.push(request.url()); });
  await page.goto(url, { timeout: 60000 });
  await page.waitForFunction(() => window.slip && window.slip.openedMs !== null, null, { timeout: 60000 });
  return { page, complaints, requests };
}

// Waits until the view stops moving.
export async function settled(page) {
  await page.waitForFunction(() => !window.slip.state().moving);
  return page.evaluate(() => window.slip.state());
}

// The position of an op, in pixels of the window.
export async function whereIs(page, op) {
  const box = await page.evaluate((i) => window.slip.where(i), op);
  const canvas = await page.locator("#timeline").boundingBox();
  return box && { x: canvas.x + box.x + Math.max(1, box.width / 2), y: canvas.y + box.y + box.height / 2 };
}
