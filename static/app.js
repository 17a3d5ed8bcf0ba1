/** The page as a whole: what is read when, which view is shown, when a connection is held. */

import { wire } from './actions.js';
import { ask } from './api.js';
import { followDisplay } from './display.js';
import { all, on, one, reveal, write } from './dom.js';
import { followForm, form, learn, showKind } from './form.js';
import { FINAL, Jobs } from './jobs.js';
import { List } from './list.js';
import { sayStatus } from './say.js';
import { Feed } from './tabs.js';
import { Watcher } from './watch.js';
import { LANGUAGES, firstLanguage, speak, word } from './words.js';

const GATHER_MS = 50;
const LOOK_SOON_MS = 1500;
const LOOK_EVERY_MS = 5000;
const HIDDEN_FOR_LONG_MS = 60000;

const { dataset } = document.body;
const language = one('select[name=language]');
const query = new URLSearchParams(location.search);
const shared = query.get('share') && query.get('job');
const mine = new Set();
const jobs = new Jobs((id) => {
	list.changed(id);
	if (!shared) watcher.choose();
});
const watcher = new Watcher(jobs);
const list = new List(jobs, {
	made: (card) => wire(card, jobs, (id) => watcher.follow(id)),
	watched: () => shared || watcher.id,
	readOnly: Boolean(shared),
});
const feed = new Feed({ event: (...event) => spoken.then(() => heard(...event)), state: connected });
let reading;
let looking;
let hiding;
let kindsKnown = false;

function heard(name, data) {
	if (name === 'snapshot') return readSoon();
	const before = jobs.get(data.job_id)?.job.status;
	jobs.hear(name, data);
	if (!data.status) return;
	if (data.status !== before && mine.has(data.job_id)) sayStatus(data);
	looking ??= setTimeout(() => guard(look), LOOK_SOON_MS);
}

async function connected(state) {
	dataset.connection = state;
	await spoken;
	write(one('.connection'), word(`connection.${state}`));
	if (state === 'open' && !shared) readSoon();
}

function readSoon() {
	clearTimeout(reading);
	reading = setTimeout(() => guard(read), GATHER_MS);
}

async function listed(query) {
	const since = Date.now();
	const page = await ask(`jobs?limit=50${query}`);
	for (const job of page.jobs) jobs.putAsked(job, since);
	return { ...page, since };
}

// The list as the server has it now; events that come meanwhile have the last word.
async function read() {
	const [page, told] = await Promise.all([listed(''), kindsKnown || ask('kinds')]);
	if (!kindsKnown) learn(told.kinds);
	kindsKnown = true;
	jobs.keepOnly(page.jobs, !page.next_cursor, page.since);
	jobs.older ??= page.next_cursor ?? '';
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
	looking = clearTimeout(looking);
	const waiting = new Set(jobs.order.map(({ job }) => job.status).filter((status) => !FINAL.has(status)));
	const overview = dataset.view === 'overview';
	const wanted = !document.hidden && dataset.connection === 'open' && (waiting.size || overview);
	const stats = wanted ? await ask('stats') : {};
	if (wanted && overview) (await import('./overview.js')).drawOverview(stats);
	reveal(one('[data-notice=worker]'), waiting.size && stats.live_workers === 0 ? word('notice.worker') : '');
	for (const status of wanted ? waiting : []) await listed(`&status=${status}`);
}

// What neither the connection nor the dialog tells is a notice.
async function guard(work) {
	const problem = await work().then(() => ({}), (problem) => problem);
	if (problem.stack && !('status' in problem)) throw problem;
	reveal(one('[data-notice=page]'), [400, 403, 422].includes(problem.status) ? problem.message : '');
}

function showView() {
	const wanted = location.hash.slice(1) || 'jobs';
	if (!['jobs', 'dead', 'overview'].includes(wanted)) return;
	dataset.view = wanted;
	for (const link of all('nav a')) link.ariaCurrent = link.hash === `#${wanted}` ? 'page' : null;
	one('section.jobs').hidden = wanted === 'overview';
	one('section.overview').hidden = wanted !== 'overview';
	form.hidden = wanted !== 'jobs';
	list.filter(wanted === 'dead' ? 'failed' : null);
	guard(wanted === 'dead' ? () => listed('&status=failed') : look);
}

async function show(chosen) {
	await speak(chosen);
	language.value = chosen;
	write(one('.connection'), word(`connection.${dataset.connection}`));
	showKind();
	list.redraw();
}

// A hidden page holds no connection for long; on return it reads anew.
function followVisibility() {
	on(document, 'visibilitychange', () => {
		clearTimeout(hiding);
		if (document.hidden) hiding = setTimeout(rest, HIDDEN_FOR_LONG_MS);
		else wake();
	});
	on(window, 'pagehide', rest);
	on(window, 'pageshow', ({ persisted }) => persisted && wake());
	on(window, 'online', () => {
		rest();
		wake();
	});
	wake();
}

function followKey() {
	const button = one('[data-action=leave]');
	button.hidden = !localStorage.session;
	on(button, 'click', async () => (await import('./session.js')).leave());
	on(window, 'slowcall:key', async () => (await import('./session.js')).askForKey());
}

function rest() {
	feed.stop();
	watcher.stop();
}

function wake() {
	feed.start();
	watcher.choose();
}

followDisplay();
for (const [tag, name] of Object.entries(LANGUAGES)) language.add(new Option(name, tag));
on(language, 'change', () => show((localStorage.language = language.value)));
const spoken = show(firstLanguage());
if (shared) {
	await spoken;
	(await import('./shared.js')).showShared(jobs, shared, query.get('share'), connected);
} else {
	followKey();
	followForm((job) => {
		mine.add(job.job_id);
		jobs.putAsked(job, 1, true);
	});
	on(window, 'hashchange', showView);
	on(one('.older'), 'click', () => guard(readOlder));
	// The connection needs no words; what it brings waits for them.
	followVisibility();
	await spoken;
	showView();
	setInterval(() => guard(look), LOOK_EVERY_MS);
}
