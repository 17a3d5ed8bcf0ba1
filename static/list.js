/** The list of cards: which jobs are shown, drawn at most once a frame. */

import { Card } from './card.js';
import { one, reveal, write } from './dom.js';
import { FINAL } from './jobs.js';
import { word } from './words.js';

const PAGE = 50;
const TICK_MS = 1000;
const NEW_IN_A_FRAME = 10;

export class List {
	#dirty = new Set();
	#frame = 0;
	#moved = true;
	#cards = new Map();
	#place = one('.list');
	#only = null;
	#limit = PAGE;

	/** `made(card)` is called for each new card; `watched()` is the id whose text is streamed. */
	constructor(jobs, { made, watched, readOnly }) {
		Object.assign(this, { jobs, made, watched, readOnly });
		this.observer = new IntersectionObserver((seen) => {
			for (const { target, isIntersecting } of seen) if (isIntersecting) target.dispatchEvent(new Event('appear'));
		});
		setInterval(() => document.hidden || this.#countDown(), TICK_MS);
	}

	/** Show jobs of one status, or all (null). */
	filter(only) {
		this.#only = only;
		this.#limit = PAGE;
		this.redraw();
	}

	/** Show more. Answers a question: are there too few at hand? */
	more() {
		this.#limit += PAGE;
		this.redraw();
		return () => this.#wanted().length < this.#limit;
	}

	changed(id) {
		this.#dirty.add(id);
		this.#moved ||= !this.#cards.has(id) || !this.#fits(this.jobs.get(id));
		this.#frame ||= requestAnimationFrame(() => this.#draw());
	}

	redraw() {
		this.#moved = true;
		for (const id of [...this.#cards.keys(), '']) this.changed(id);
	}

	#fits(entry) {
		return entry && (!this.#only || entry.job.status === this.#only);
	}

	#wanted() {
		return this.jobs.order.filter((entry) => this.#fits(entry)).slice(0, this.#limit);
	}

	#draw() {
		this.#frame = 0;
		if (this.#moved) this.#arrange(this.#wanted());
		for (const id of this.#dirty) this.#cards.get(id)?.draw(this.jobs.get(id), this.watched() === id);
		this.#dirty.clear();
	}

	// Cards that leave go first: what stays is then in order already and keeps its focus.
	#arrange(wanted) {
		this.#moved = false;
		const ids = new Set(wanted.map(({ job }) => job.job_id));
		for (const [id, { element }] of this.#cards) if (!ids.has(id)) this.#drop(id, element);
		let next = this.#place.firstElementChild;
		let made = 0;
		for (const entry of wanted) {
			const known = this.#cards.get(entry.job.job_id);
			if (!known && (made += 1) > NEW_IN_A_FRAME) continue;
			const { element } = known ?? this.#make(entry);
			if (element === next) next = next.nextElementSibling;
			else this.#place.insertBefore(element, next);
		}
		if (made > NEW_IN_A_FRAME) setTimeout(() => this.redraw());
		const view = this.#only ? 'dead' : 'jobs';
		write(one('#list-title'), word(`page.${view}`));
		reveal(one('.empty'), wanted.length ? '' : word(`list.empty.${view}`));
		one('.older').hidden = wanted.length < this.#limit && (this.#only || !this.jobs.older);
	}

	#make(entry) {
		const card = new Card(entry, this.readOnly);
		this.#cards.set(card.id, card);
		this.#dirty.add(card.id);
		this.made(card);
		this.observer.observe(card.element);
		return card;
	}

	// The keyboard stays in the list when the card it was in goes.
	#drop(id, element) {
		const beside = element.nextElementSibling ?? element.previousElementSibling;
		const focused = element.contains(document.activeElement);
		this.observer.unobserve(element);
		this.#cards.delete(id);
		element.remove();
		if (focused) (beside?.querySelector('button:not([hidden])') ?? one('main')).focus();
	}

	#countDown() {
		for (const id of this.#cards.keys()) if (!FINAL.has(this.jobs.get(id)?.job.status)) this.changed(id);
	}
}
