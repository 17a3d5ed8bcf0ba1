/** One event stream that stays up: revived with backoff after whatever a browser gives up on. */

import { address, ask } from './api.js';

const NAMES = ['queued', 'running', 'retrying', 'done', 'failed', 'cancelled', 'progress', 'delta', 'snapshot'];
const FIRST_WAIT_MS = 1000;
const LONGEST_WAIT_MS = 30000;
const REFUSALS = new Set([401, 403, 404]);

export class Stream {
  #source = null;
  #timer = 0;
  #wait = FIRST_WAIT_MS;

  /**
   * `path` of the stream; `probe` is a path that a refused stream's status can be read from.
   * `on.event(name, data, id)`, `on.state('open' | 'reconnecting' | 'closed')`, `on.refused(status)`.
   */
  constructor(path, probe, on) {
    Object.assign(this, { path, probe, on, last: '' });
  }

  /** Open, or open anew, behind the last event that was heard. */
  open() {
    this.#drop();
    const url = new URL(address(this.path));
    if (this.last) url.searchParams.set('after', this.last);
    const source = new EventSource(url);
    source.onopen = () => {
      this.#wait = FIRST_WAIT_MS;
      this.on.state('open');
    };
    source.onerror = () => this.#lost(source);
    for (const name of NAMES) {
      source.addEventListener(name, (event) => {
        this.last = event.lastEventId || this.last;
        this.on.event(name, JSON.parse(event.data), this.last);
      });
    }
    this.#source = source;
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
    this.#source = null;
  }

  // CONNECTING: the browser tries again by itself. CLOSED: it never will (an error status, a proxy's page).
  #lost(source) {
    if (source !== this.#source) return;
    this.on.state('reconnecting');
    if (source.readyState !== EventSource.CLOSED) return;
    this.#drop();
    this.#timer = setTimeout(() => this.#revive(), this.#wait * (0.75 + Math.random() / 2));
    this.#wait = Math.min(this.#wait * 2, LONGEST_WAIT_MS);
  }

  async #revive() {
    const timer = this.#timer;
    const status = await ask(this.probe).then(() => 200, (problem) => problem.status);
    if (timer !== this.#timer) return;
    if (!REFUSALS.has(status)) return this.open();
    this.close();
    this.on.refused(status);
  }
}
