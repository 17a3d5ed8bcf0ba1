/** The jobs this page knows, newest first, and the rules of what may change what. */

export const FINAL = new Set(['done', 'failed', 'cancelled']);

/** Entries: a job with `at` when it came (ms), `heard` when an event last told of it, `seen` its time
 * line, `highest` and `total` of its bar, its streamed `text` by step, the `price` of a retry. */
export class Jobs {
	entries = new Map();
	order = [];
	/** The cursor to the server's older ones; '' for none; null while unknown. */
	older = null;

	/** `changed(id)` is called after each change. */
	constructor(changed) {
		this.changed = changed;
	}

	get(id) {
		return this.entries.get(id);
	}

	/** A whole job: from an event or an answer (`live`: this happens now), or a list. */
	put(job, live = true) {
		const entry = this.get(job.job_id) ?? this.#add(job);
		if (FINAL.has(entry.job.status) && !FINAL.has(job.status)) begin(entry);
		if (entry.seen.at(-1)?.status !== job.status) note(entry.seen, job, live);
		entry.at = Date.now();
		if (live) entry.heard = entry.at;
		this.#keep(entry, job);
	}

	/** A job of a list, or an answer (`live`), asked for at `since` (ms): what was heard meanwhile is newer. */
	putAsked(job, since, live = false) {
		if (!(this.get(job.job_id)?.heard >= since)) this.put(job, live);
	}

	/** An event. Jobs older than the loaded pages are left out. */
	hear(name, data) {
		const entry = this.get(data.job_id);
		if (name !== 'progress') {
			if (entry || !this.older || newestFirst(data, this.order.at(-1)?.job) < 0) this.put(data);
		} else if (entry && !FINAL.has(entry.job.status)) {
			entry.heard = Date.now();
			this.#keep(entry, { ...entry.job, progress: data.progress });
		}
	}

	/** An event of a job's own stream, with its text: `running` voids what came before. */
	hearText(id, name, { step, text } = {}) {
		const entry = this.get(id);
		if (!entry || FINAL.has(entry.job.status)) return;
		if (name === 'delta') entry.text.set(step, (entry.text.get(step) ?? '') + text);
		if (name === 'running' || name === 'snapshot') entry.text.clear();
		this.changed(id);
	}

	remove(id) {
		this.entries.delete(id);
		this.order = this.order.filter(({ job }) => job.job_id !== id);
		this.changed(id);
	}

	/** Forget what a list asked for at `since` has no more: it was discarded. */
	keepOnly(listed, complete, since) {
		const ids = new Set(listed.map((job) => job.job_id));
		for (const { job, heard } of this.order) {
			const covered = complete || newestFirst(job, listed.at(-1)) < 0;
			if (covered && heard < since && !ids.has(job.job_id)) this.remove(job.job_id);
		}
	}

	// A bar never goes back within a life, whatever order things arrive in.
	#keep(entry, job) {
		entry.job = job;
		entry.highest = Math.max(entry.highest, job.progress.done);
		entry.total = job.progress.total ?? entry.total;
		this.changed(job.job_id);
	}

	#add(job) {
		const entry = { job, heard: 0, text: new Map() };
		begin(entry);
		const place = this.order.findIndex((other) => newestFirst(job, other.job) < 0);
		this.order.splice(place < 0 ? this.order.length : place, 0, entry);
		this.entries.set(job.job_id, entry);
		return entry;
	}
}

const sortKey = (job) => (job ? job.created_at + job.job_id : '');
const newestFirst = (a, b) => (sortKey(a) < sortKey(b) ? 1 : -1);

// A life begins: by the submission, or again by a person's retry.
function begin(entry) {
	Object.assign(entry, { seen: [], highest: 0, total: null, price: null, asked: false });
	entry.text.clear();
}

// When a status was entered: as the job tells, else now, if this is seen as it happens.
function note(seen, { status, reason, created_at: created, started_at: started, finished_at: finished }, live) {
	const first = !seen.length;
	if (first && status !== 'queued') seen.push({ status: 'queued', at: created });
	if (first && started && status !== 'running') seen.push({ status: 'running', at: started });
	const start = status === 'running' && !seen.some((one) => one.status === 'running') && started;
	const submission = status === 'queued' && first && !started && created;
	seen.push({ status, reason, at: finished || start || submission || (live ? Date.now() : null) });
}
