/** The jobs this page knows, newest first, and the rules of what may change what. */

export const FINAL = new Set(['done', 'failed', 'cancelled']);
const RANK = { queued: 0, running: 1, retrying: 2, done: 3, failed: 3, cancelled: 3 };

/** An entry is `{ job, at, seen, highest, total, text, price }`: the job, when it came (ms), its time
 * line, its progress as shown, its streamed text by step, and what a retry would cost. */
export class Jobs {
  /** `changed(id)` is called after each change. `older`: whether the server has older ones. */
  constructor(changed) {
    Object.assign(this, { changed, entries: new Map(), order: [], older: null });
  }

  get(id) {
    return this.entries.get(id);
  }

  /** A whole job: from an event or the answer to a request (`live`: this happens now), or a list. */
  put(job, live = true) {
    const entry = this.entries.get(job.job_id) ?? this.#add(job);
    if (FINAL.has(entry.job.status) && !FINAL.has(job.status)) begin(entry);
    if (entry.seen.at(-1)?.status !== job.status) note(entry.seen, job, live);
    Object.assign(entry, { job, at: Date.now() });
    keepHighest(entry);
    this.changed(job.job_id);
  }

  /** A job as a list has it, unless events have ended it meanwhile. */
  putListed(job) {
    const known = this.get(job.job_id)?.job;
    if (!known || !FINAL.has(known.status) || stage(job) >= stage(known)) this.put(job, false);
  }

  /** An event. Jobs older than the loaded pages are left out. */
  hear(name, data) {
    const entry = this.get(data.job_id);
    if (name !== 'progress') {
      if (entry || !this.older || newestFirst(data, this.order.at(-1)?.job) < 0) this.put(data);
    } else if (entry && !FINAL.has(entry.job.status)) {
      entry.job = { ...entry.job, progress: data.progress };
      keepHighest(entry);
      this.changed(data.job_id);
    }
  }

  /** An event of one job's own stream, which has its text, too. */
  hearText(id, name, data) {
    const entry = this.get(id);
    if (!entry || FINAL.has(entry.job.status)) return;
    if (name === 'delta') entry.text.set(data.step, (entry.text.get(data.step) ?? '') + data.text);
    else if (name === 'running' || name === 'snapshot') entry.text.clear();
    this.changed(id);
  }

  remove(id) {
    const entry = this.get(id);
    if (!entry) return;
    this.entries.delete(id);
    this.order.splice(this.order.indexOf(entry), 1);
    this.changed(id);
  }

  /** Forget what a list read at `since` (ms) has no more: it was discarded while nobody listened. */
  keepOnly(listed, complete, since) {
    const ids = new Set(listed.map((job) => job.job_id));
    for (const { job, at } of [...this.order]) {
      const covered = complete || newestFirst(job, listed.at(-1)) < 0;
      if (covered && at < since && !ids.has(job.job_id)) this.remove(job.job_id);
    }
  }

  #add(job) {
    const entry = { job, text: new Map() };
    begin(entry);
    let [place, end] = [0, this.order.length];
    while (place < end) {
      const middle = (place + end) >> 1;
      if (newestFirst(this.order[middle].job, job) < 0) place = middle + 1;
      else end = middle;
    }
    this.order.splice(place, 0, entry);
    this.entries.set(job.job_id, entry);
    return entry;
  }
}

const sortKey = (job) => (job ? job.created_at + job.job_id : '');
const newestFirst = (a, b) => (sortKey(a) < sortKey(b) ? 1 : -1);
const stage = ({ attempts, status }) => attempts * 10 + RANK[status];

// A life begins: by the submission, or again by a person's retry.
function begin(entry) {
  Object.assign(entry, { seen: [], highest: 0, total: null, price: null, asked: false });
  entry.text.clear();
}

// When a status was entered: as far as the job tells, else now, if this is seen as it happens.
function note(seen, job, live) {
  const { status, reason, created_at: created, started_at: started, finished_at: finished } = job;
  const first = !seen.length;
  if (first && status !== 'queued') seen.push({ status: 'queued', at: created });
  if (first && started && status !== 'running') seen.push({ status: 'running', at: started });
  const ran = seen.some((one) => one.status === 'running');
  const told = finished ?? (status === 'running' && !ran ? started : first && status === 'queued' && !started ? created : null);
  seen.push({ status, reason, at: told ?? (live ? Date.now() : null) });
}

// A bar never goes back within a life, whatever order things arrive in.
function keepHighest(entry) {
  const { done, total } = entry.job.progress;
  entry.highest = Math.max(entry.highest, done);
  entry.total = total ?? entry.total;
}
