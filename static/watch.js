/** The one job whose text is streamed into this page, by a stream of its own, while it runs. */

import { FINAL } from './jobs.js';
import { Stream } from './stream.js';
import { holdTextPlace } from './tabs.js';

// A job that ends at once needs no stream: its text comes with its result.
const PATIENCE_MS = 300;

// A document has no text to stream before its pages are done.
const writes = ({ job: { status, kind }, highest, total }) =>
	status === 'running' && (kind !== 'summarize' || total < 2 || highest === total);

export class Watcher {
	#turn;
	#timer;
	id = null;

	constructor(jobs) {
		this.jobs = jobs;
	}

	/** Watch this job, and no other. */
	follow(id) {
		this.stop();
		this.id = id;
		this.#turn = new AbortController();
		const { signal } = this.#turn;
		holdTextPlace(signal, () => {
			const stream = follow(this.jobs, id, '', { refused: (status) => status === 404 && this.jobs.remove(id) });
			signal.addEventListener('abort', () => stream.close());
		});
		this.jobs.changed(id);
	}

	/** Leave a job that has ended, and take the newest one that runs. */
	choose() {
		const status = this.jobs.get(this.id)?.job.status ?? 'done';
		if (this.id && FINAL.has(status)) this.stop();
		if (this.id) return;
		this.#timer ??= setTimeout(() => {
			this.#timer = null;
			const next = this.jobs.order.find(writes);
			if (next && !this.id && !document.hidden) this.follow(next.job.job_id);
		}, PATIENCE_MS);
	}

	stop() {
		const { id } = this;
		this.#timer = clearTimeout(this.#timer);
		this.#turn?.abort();
		this.id = null;
		if (id) this.jobs.hearText(id, 'snapshot');
	}
}

/** Open the stream of one job: its text goes to `jobs`. `permit`: the query that lets a guest in. */
export function follow(jobs, id, permit, on) {
	const path = `jobs/${encodeURIComponent(id)}`;
	const stream = new Stream(`${path}/stream${permit}`, path + permit, {
		state: () => {},
		...on,
		event: (name, data) => {
			jobs.hearText(id, name, data);
			on.event?.(name, data);
			if (name !== 'snapshot' || FINAL.has(data.status)) return;
			stream.last = '';
			stream.open();
		},
	});
	stream.open();
	return stream;
}
