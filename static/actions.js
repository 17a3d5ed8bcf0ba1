/** What a person can do with a job: its card's buttons, what they cost, what was bought. */

import { ask } from './api.js';
import { make, on, reveal } from './dom.js';
import { say } from './say.js';
import { word } from './words.js';

/** Wire a new card; `follow(id)` streams its text. */
export function wire(card, jobs, follow) {
	const { id, element } = card;
	const post = (verb) => ask(`jobs/${id}/${verb}`, 'POST');
	const change = async (verb, since = Date.now()) => jobs.putAsked(await post(verb), since, true);
	const verbs = {
		watch: async () => follow(id),
		cancel: () => change('cancel'),
		retry: () => change('retry'),
		discard: () => discard(id, jobs),
		copy: () => copy(jobs.get(id).job.result.text),
		download: async () => (await import('./take.js')).download(jobs.get(id).job),
		share: async () => (await import('./take.js')).showLink(card, await post('share')),
	};
	on(element, 'click', async ({ target }) => {
		const verb = verbs[target.dataset.action];
		if (!verb || target.ariaDisabled) return;
		target.ariaDisabled = 'true';
		const fault = await verb().then(() => '', ({ message }) => message || word('fault.away'));
		target.ariaDisabled = null;
		reveal(card.find('.fault'), fault);
	});
	const look = async () => {
		showPrice(card, jobs, post);
		if (card.find('.ledger').open) (await import('./ledger.js')).showLines(card);
	};
	for (const event of ['appear', 'drawn']) on(element, event, look);
	on(card.find('.ledger'), 'toggle', look);
}

async function discard(id, jobs) {
	await ask(`jobs/${id}`, 'DELETE').catch((problem) => {
		if (problem.status !== 404) throw problem;
	});
	jobs.remove(id);
	say(word('said.discarded'));
}

// Without TLS a browser offers no clipboard but that of a selection.
async function copy(text) {
	const place = document.body.appendChild(make('textarea', text));
	place.select();
	if (navigator.clipboard) await navigator.clipboard.writeText(text);
	else document.execCommand('copy');
	place.remove();
	say(word('said.copied'));
}

// What a retry would cost is asked for once a life, when somebody sees the card.
async function showPrice(card, jobs, post) {
	const entry = jobs.get(card.id);
	const { top, bottom } = card.element.getBoundingClientRect();
	const asks = card.find('[data-action=retry]:not([hidden])') && bottom > 0 && top < innerHeight;
	if (!asks || !entry || entry.asked) return;
	entry.asked = true;
	entry.price = await post('retry?dry_run=true').catch(() => null);
	jobs.changed(card.id);
}
