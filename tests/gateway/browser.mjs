// Uses the page of docs/examples/ai-sdk in Chromium, as tests/gateway/browser.py says. Arguments: the address
// of the page, the program of the browser, and where the packages are.
import { createRequire } from 'node:module';

const [address, executablePath, packages] = process.argv.slice(2);
const { chromium } = createRequire(packages)('playwright-core');
const browser = await chromium.launch({ executablePath, args: ['--no-sandbox'] });
const page = await browser.newPage();
page.on('pageerror', error => console.error('page:', error.message));

const answers = page.locator('section.assistant');
const ready = () => page.locator('output', { hasText: 'ready' }).waitFor();
const last = async (...words) => {
  for (const text of words) await answers.last().getByText(text).first().waitFor({ timeout: 20_000 });
  console.log('saw', JSON.stringify(words));
};
const say = async text => {
  await page.fill('input', text);
  await page.click('text=Send');
};

await page.goto(address);
await ready();
await say('hi');
await last('Hello there');
await ready();
await page.click('text=Again');
await last('Hello again');
await ready();

await say('change it');
await page.click('text=Approve');
await page.locator('pre[data-state=output-available]').waitFor();
await last('added as uid', 'It is changed');
await ready();
await say('change it once more');
await page.click('text=Deny');
await page.locator('pre[data-state=output-denied]').waitFor();
await last('I did not');
await ready();

await say('clean up');
await last('Which disk?');
await ready();
await say('sda');
await last('sda it is');
await ready();

await say('talk');
await last('word5 ');
await page.reload();
await last('word0 ', 'word5 ', 'word199 ');
await ready();

await say('fail');
await page.locator('[role=alert]', { hasText: 'scripted failure' }).waitFor();
console.log('saw', JSON.stringify(await page.locator('[role=alert]').textContent()));
await browser.close();
