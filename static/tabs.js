/** Few connections for many tabs: a browser allows six to one host, over all its tabs. */

import { Stream } from './stream.js';

const SCOPE = `slowcall ${new URL('.', document.baseURI).pathname}`;
const TEXT_PLACES = ['text 1', 'text 2', 'text 3'];
// No stream has this cursor, so it begins with a snapshot, and what follows is complete.
const FROM_A_SNAPSHOT = 'none';

/** The stream of all jobs: one tab leads and passes on what it hears, the others listen. */
export class Feed {
	#channel;
	#turn;
	#leading = false;
	#state = 'closed';

	constructor(on) {
		this.on = on;
		this.stream = new Stream('jobs/stream', 'jobs?limit=1', {
			event: (...event) => this.#tell({ event }),
			state: (state) => this.#tell({ state }),
			refused: () => {},
		});
		this.stream.last = FROM_A_SNAPSHOT;
	}

	/** Connect, or connect anew where the connection is not known to be good. */
	start() {
		if (this.#leading && !this.stream.good) this.stream.open();
		if (this.#turn) return;
		this.#turn = new AbortController();
		this.#hear({ state: 'reconnecting' });
		this.#channel = new BroadcastChannel(SCOPE);
		this.#channel.onmessage = ({ data }) => {
			if (!data.hello) this.#hear(data);
			else if (this.#leading) this.#channel.postMessage({ state: this.#state });
		};
		this.#channel.postMessage({ hello: true });
		hold(SCOPE, this.#turn.signal, () => {
			this.#leading = true;
			this.stream.open();
		});
	}

	stop() {
		this.#leading = false;
		this.#turn?.abort();
		this.#turn = null;
		this.#channel?.close();
		this.stream.close();
		this.#hear({ state: 'closed' });
	}

	#tell(message) {
		if (!this.#leading) return;
		this.#channel.postMessage(message);
		this.#hear(message);
	}

	#hear({ event, state = this.#state }) {
		if (state !== this.#state) this.on.state((this.#state = state));
		if (!event) return;
		this.stream.last = event[2];
		this.on.event(...event);
	}
}

/** Begin `work` in one of the few places for a stream of text, held until the signal. */
export async function holdTextPlace(signal, work) {
	const { held = [] } = (await navigator.locks?.query()) ?? {};
	const free = TEXT_PLACES.find((place) => held.every(({ name }) => name !== place));
	hold(free ?? TEXT_PLACES[0], signal, work);
}

// A lock ends with its tab, too. Without TLS a browser may have none: then all begin.
function hold(name, signal, begin) {
	const held = () => new Promise((release) => {
		if (signal.aborted) return release();
		signal.addEventListener('abort', release);
		begin();
	});
	if (navigator.locks) navigator.locks.request(name, { signal }, held).catch(() => {});
	else held();
}
