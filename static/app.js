/** The page as a whole: what is read when, which view is shown, when a connection is held. */

import { wire } from './actions.js';
import { ask } from './api.js';
import { followDisplay } from './display.js';
import { one, reveal, write } from './dom.js';
import { followForm, form, learn, showKind } from './form.js';
import { FINAL, Jobs } from './jobs.js';
import { List } from './list.js';
import { drawOverview } from './overview.js';
import { sayStatus } from './say.js';
import { followSession } from './session.js';
import { shared, showShared } from './shared.js';
import { Feed } from './tabs.js';
import { Watcher } from './watch.js';
import { LANGUAGES, firstLanguage, speak, word } from './words.js';

const GATHER_MS = 50;
const LOOK_EVERY_MS = 5000;
const HIDDEN_FOR_LONG_MS = 60000;
const { body } = document;

const jobs = new Jobs((id) => {
  list.changed(id);
  if (!shared) watcher.choose();
});
const watcher = new Watcher(jobs, (id) => list.changed(id));
const list = new List(jobs, {
  made: (card) => wire(card, jobs, (id) => watcher.follow(id)),
  watched: () => shared || watcher.id,
  readOnly: Boolean(shared),
});
const feed = new Feed({ event: heard, state: connected, refused: () => {} });
const mine = new Set();
let reading = 0;
let hiding = 0;
let kindsKnown = false;

function heard(name, data) {
  if (name === 'snapshot') return readSoon();
  const before = jobs.get(data.job_id)?.job.status;
  jobs.hear(name, data);
  if (data.status && data.status !== before && mine.has(data.job_id)) sayStatus(data);
  return undefined;
}

function connected(state) {
  body.dataset.connection = state;
  write(one('.connection'), word(`connection.${state}`));
  if (state === 'open' && !shared) readSoon();
}

function readSoon() {
  clearTimeout(reading);
  reading = setTimeout(() => guard(read), GATHER_MS);
}

const listed = async (query) => {
  const page = await ask(`jobs?limit=50${query}`);
  for (const job of page.jobs) jobs.putListed(job);
  return page;
};

// The list as the server has it now; events that come meanwhile have the last word.
async function read() {
  const since = Date.now();
  if (!kindsKnown) learn((await ask('kinds')).kinds);
  kindsKnown = true;
  const page = await listed('');
  jobs.keepOnly(page.jobs, !page.next_cursor, since);
  if (jobs.older === null) jobs.older = page.next_cursor ?? '';
  list.redraw();
  await look();
}

async function readOlder() {
  const wanting = list.more();
  while (jobs.older && wanting()) jobs.older = (await listed(`&cursor=${encodeURIComponent(jobs.older)}`)).next_cursor ?? '';
  list.redraw();
}

// What no event tells: places in the queue, times to go, whether anybody works.
async function look() {
  const statuses = new Set(jobs.order.map(({ job }) => job.status).filter((status) => !FINAL.has(status)));
  const overview = body.dataset.view === 'overview';
  if (document.hidden || body.dataset.connection !== 'open' || !(statuses.size || overview)) return reveal(one('[data-notice=worker]'), '');
  const stats = await ask('stats');
  if (overview) drawOverview(stats);
  reveal(one('[data-notice=worker]'), statuses.size && stats.live_workers === 0 ? word('notice.worker') : '');
  for (const status of statuses) await listed(`&status=${status}`);
  return undefined;
}

// Nobody answering is told by the connection, a missing key by the dialog: the rest is a notice.
async function guard(work) {
  const problem = await work().then(() => null, (problem) => problem);
  if (problem && !('status' in problem)) throw problem;
  reveal(one('[data-notice=page]'), problem && problem.status !== 401 && !problem.passing ? problem.message : '');
}

function showView() {
  const wanted = location.hash.slice(1) || 'jobs';
  if (!['jobs', 'dead', 'overview'].includes(wanted)) return;
  body.dataset.view = wanted;
  for (const link of document.querySelectorAll('nav a')) link.ariaCurrent = link.hash === `#${wanted}` ? 'page' : null;
  one('section.jobs').hidden = wanted === 'overview';
  one('section.overview').hidden = wanted !== 'overview';
  form.hidden = wanted !== 'jobs';
  list.filter(wanted === 'dead' ? 'failed' : null);
  guard(wanted === 'dead' ? () => listed('&status=failed') : look);
}

async function setLanguage(language) {
  await speak(language);
  one('select[name=language]').value = language;
  write(one('.connection'), word(`connection.${body.dataset.connection}`));
  showKind();
  list.redraw();
}

function followLanguage() {
  const select = one('select[name=language]');
  for (const [tag, name] of Object.entries(LANGUAGES)) select.add(new Option(name, tag));
  select.addEventListener('change', () => {
    localStorage.setItem('language', select.value);
    setLanguage(select.value);
  });
}

// A hidden page holds none of the browser's few connections for long; on return it reads anew.
function followVisibility() {
  document.addEventListener('visibilitychange', () => {
    clearTimeout(hiding);
    if (document.hidden) hiding = setTimeout(rest, HIDDEN_FOR_LONG_MS);
    else wake();
  });
  addEventListener('pagehide', rest);
  addEventListener('pageshow', ({ persisted }) => persisted && wake());
  addEventListener('online', wake);
}

function rest() {
  feed.stop();
  watcher.stop();
}

function wake() {
  feed.start();
  feed.refresh();
  watcher.choose();
}

followDisplay();
followLanguage();
await setLanguage(firstLanguage());
if (shared) {
  showShared(jobs, connected);
} else {
  followSession();
  followForm((job) => {
    mine.add(job.job_id);
    jobs.put(job);
  });
  addEventListener('hashchange', showView);
  one('.older').addEventListener('click', () => guard(readOlder));
  showView();
  followVisibility();
  feed.start();
  setInterval(() => guard(look), LOOK_EVERY_MS);
}
