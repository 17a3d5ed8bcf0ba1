/** One job on the page: a card that shows it and changes only what changed. */

import { make, one, reveal, write } from './dom.js';
import { FINAL } from './jobs.js';
import { ahead, attempts, bought, doing, entered, price, source, titleOf, took, trouble } from './phrases.js';
import { word } from './words.js';

const MOST_CELLS = 200;
const TIMELINE = 8;
const ACTIONS = {
	watch: ({ status }, watching) => status === 'running' && !watching,
	cancel: ({ status }) => !FINAL.has(status),
	retry: ({ status }) => status === 'failed' || status === 'cancelled',
	copy: ({ result }) => result?.text,
	download: ({ result }) => result?.text,
	share: () => true,
	discard: ({ status }) => FINAL.has(status),
};
const FOR_GUESTS = ['copy', 'download'];

const copyOf = (template) => one(template).content.firstElementChild.cloneNode(true);

export class Card {
	#drawn = '';

	/** `readOnly`: for a guest, who may only read. */
	constructor({ job }, readOnly) {
		this.element = copyOf('#card');
		this.id = job.job_id;
		this.element.dataset.jobId = this.id;
		this.actions = Object.keys(ACTIONS).filter((action) => !readOnly || FOR_GUESTS.includes(action));
		for (const action of this.actions) {
			const button = Object.assign(make('button'), { type: 'button' });
			button.dataset.action = action;
			this.find('.actions').append(button);
		}
		const title = this.find('h3');
		title.id = `job-${this.id}`;
		title.textContent = titleOf(job);
		for (const node of [this.element, this.find('.bar'), this.find('.text')]) node.setAttribute('aria-labelledby', title.id);
	}

	find(selector) {
		return one(selector, this.element);
	}

	/** `watching`: its text is streamed into this page. */
	draw(entry, watching) {
		const { job } = entry;
		this.element.dataset.status = job.status;
		this.#bar(entry);
		this.#text(entry);
		const look = JSON.stringify([document.documentElement.lang, job, entry.seen, entry.price, watching]);
		if (look === this.#drawn) return;
		this.#drawn = look;
		write(this.find('.status'), word(`status.${job.status}`));
		write(this.find('.kind-name'), job.kind);
		write(this.find('[data-part=attempts]'), attempts(job));
		write(this.find('.took'), took(job));
		this.find('.timeline').replaceChildren(...entry.seen.slice(-TIMELINE).map((one) => make('li', entered(one))));
		this.#cells(entry);
		const sentences = trouble(job);
		this.find('.error').hidden = !sentences.length;
		[...this.find('.error').children].forEach((node, place) => write(node, sentences[place] ?? ''));
		reveal(this.find('.source'), source(job));
		const sums = bought(job);
		this.find('.ledger').hidden = !sums;
		write(this.find('.ledger summary'), sums);
		for (const action of this.actions) {
			reveal(this.find(`[data-action=${action}]`), ACTIONS[action](job, watching) ? word(`action.${action}`) : '');
		}
		reveal(this.find('.price'), ACTIONS.retry(job) && entry.price ? price(entry.price) : '');
		this.element.dispatchEvent(new Event('drawn'));
	}

	#bar(entry) {
		const { job, highest, total } = entry;
		const bar = this.find('.bar');
		const known = total !== null;
		bar.hidden = FINAL.has(job.status) && !known;
		bar.classList.toggle('moving', !known && job.status === 'running');
		bar.ariaValueNow = known ? highest : null;
		bar.ariaValueMax = total;
		bar.firstElementChild.style.transform = known ? `scaleX(${total ? highest / total : 1})` : '';
		write(this.find('.doing'), doing(entry));
		write(this.find('.ahead'), ahead(entry));
	}

	// A cell for each page. They fill by count: pages end in any order, and nothing says which did.
	#cells({ job, highest, total }) {
		const strip = this.find('.cells');
		const pages = job.kind === 'summarize' && total > 1 && total <= MOST_CELLS ? total : 0;
		if (strip.childElementCount !== pages) strip.replaceChildren(...Array.from({ length: pages }, () => make('i')));
		const failed = job.result?.failed_pages ?? (job.status === 'failed' ? [highest + 1] : []);
		const open = job.status === 'running' ? highest + job.ledger.open : 0;
		[...strip.children].forEach((cell, page) => {
			cell.className =
				failed.includes(page + 1) ? 'failed'
				: page < Math.min(job.ledger.reused, highest) ? 'reused'
				: page < highest ? 'done'
				: page < open ? 'open' : '';
		});
	}

	// An agent's steps are those of its result, until then those of its plan.
	#text({ job, text }) {
		const ended = FINAL.has(job.status);
		const place = this.find('[data-part=text]');
		grow(place, String((ended ? job.result?.text : [...text.values()].at(-1)) ?? ''));
		place.hidden = !place.textContent;
		const steps = [job.result?.steps ?? job.progress.plan ?? []].flat().filter(Boolean);
		const list = this.find('.steps');
		while (list.childElementCount > steps.length) list.lastElementChild.remove();
		steps.forEach(({ step, title, done = ended, text: found = text.get(step) }, at) => {
			const item = list.children[at] ?? list.appendChild(copyOf('#step'));
			item.dataset.done = done;
			write(one('summary', item), String(title ?? step));
			write(one('.text', item), String(found ?? ''));
		});
	}
}

// Streamed text is appended: a selection stays, and it costs only what was added.
function grow(place, text) {
	const node = place.firstChild ?? place.appendChild(new Text());
	if (node.data === text) return;
	const follows = place.scrollTop + place.clientHeight >= place.scrollHeight - 8;
	if (text.startsWith(node.data)) node.appendData(text.slice(node.length));
	else node.data = text;
	if (follows) place.scrollTop = place.scrollHeight;
}
