/** One event stream that stays up: revived with backoff after whatever a browser gives up on. */

import { address, ask } from './api.js';

const NAMES = 'queued running retrying done failed cancelled progress delta snapshot'.split(' ');
const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 30000;

export class Stream {
	#source;
	#timer;
	#wait = FIRST_WAIT_MS;
	last = '';

	/** `probe` is a path that tells the status of a refused stream. `on` has `event(name, data, id)`,
	 * `state('open' | 'reconnecting' | 'closed')` and `refused(status)`. */
	constructor(path, probe, on) {
		Object.assign(this, { path, probe, on });
	}

	/** Open, or open anew, behind the last event that was heard. */
	open() {
		this.#drop();
		const url = new URL(address(this.path));
		if (this.last) url.searchParams.set('after', this.last);
		const source = (this.#source = new EventSource(url));
		source.onopen = () => {
			this.#wait = FIRST_WAIT_MS;
			this.on.state('open');
		};
		source.onerror = () => source === this.#source && this.#lost();
		const hear = ({ type, data, lastEventId }) => {
			this.last = lastEventId || this.last;
			this.on.event(type, JSON.parse(data), this.last);
		};
		for (const name of NAMES) source.addEventListener(name, hear);
	}

	close() {
		this.#drop();
		this.on.state('closed');
	}

	get good() {
		return this.#source?.readyState === EventSource.OPEN;
	}

	#drop() {
		clearTimeout(this.#timer);
		this.#source?.close();
	}

	// CONNECTING: the browser tries again. CLOSED: it never will (an error's status, a proxy's page).
	#lost() {
		this.on.state('reconnecting');
		if (this.#source.readyState !== EventSource.CLOSED) return;
		const timer = (this.#timer = setTimeout(async () => {
			const status = await ask(this.probe).then(() => 200, (problem) => problem.status);
			if (timer !== this.#timer) return;
			if (![401, 403, 404].includes(status)) return this.open();
			this.close();
			this.on.refused(status);
		}, this.#wait * (0.75 + Math.random() / 2)));
		this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MS);
	}
}
