/** The one job whose text is streamed into this page, by a stream of its own, while it runs. */

import { FINAL } from './jobs.js';
import { Stream } from './stream.js';
import { holdTextPlace } from './tabs.js';

// A job that ends at once needs no stream: its text comes with its result.
const PATIENCE_MS = 300;

export class Watcher {
  #turn = null;
  #timer = 0;
  id = null;

  constructor(jobs, changed) {
    Object.assign(this, { jobs, changed });
  }

  /** Watch this job instead of any other. */
  follow(id) {
    this.stop();
    this.id = id;
    this.#turn = new AbortController();
    const { signal } = this.#turn;
    holdTextPlace(signal, () => {
      const stream = follow(`jobs/${id}/stream`, `jobs/${id}`, this.jobs, id, {
        refused: (status) => status === 404 && this.jobs.remove(id),
      });
      signal.addEventListener('abort', () => stream.close());
    });
    this.changed(id);
  }

  /** After any change: leave a job that has ended, and take the newest one that runs. */
  choose() {
    const entry = this.jobs.get(this.id);
    if (this.id && (!entry || FINAL.has(entry.job.status))) this.stop();
    if (this.id || this.#timer) return;
    this.#timer = setTimeout(() => {
      this.#timer = 0;
      const next = this.jobs.order.find(({ job }) => job.status === 'running');
      if (next && !this.id && !document.hidden) this.follow(next.job.job_id);
    }, PATIENCE_MS);
  }

  stop() {
    const { id } = this;
    clearTimeout(this.#timer);
    this.#timer = 0;
    this.#turn?.abort();
    this.id = null;
    if (id) this.jobs.hearText(id, 'snapshot');
  }
}

/** Open the stream of one job; its text goes to `jobs`. `on.event(name, data)` hears the rest. */
export function follow(path, probe, jobs, id, on) {
  const stream = new Stream(path, probe, {
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
