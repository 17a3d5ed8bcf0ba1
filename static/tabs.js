/** Few connections for many tabs: a browser allows six to one host, over all its tabs. */

import { Stream } from './stream.js';

const SCOPE = `slowcall ${new URL('.', document.baseURI).pathname}`;
const TEXT_PLACES = [1, 2, 3].map((place) => `${SCOPE} text ${place}`);
// No stream has this cursor, so the first event is a snapshot: what comes after it is complete.
const FROM_A_SNAPSHOT = 'none';

/** The stream of all jobs: one tab leads and passes on what it hears, the others listen. */
export class Feed {
  #channel = null;
  #turn = null;
  #leading = false;
  #state = 'closed';

  constructor(on) {
    this.on = on;
    this.stream = new Stream('jobs/stream', 'jobs?limit=1', {
      event: (...event) => this.#lead({ event }),
      state: (state) => this.#leading && this.#lead({ state }),
      refused: on.refused,
    });
    this.stream.last = FROM_A_SNAPSHOT;
  }

  start() {
    if (this.#turn) return;
    this.#turn = new AbortController();
    this.#set('reconnecting');
    this.#channel = new BroadcastChannel(SCOPE);
    this.#channel.onmessage = ({ data }) => this.#receive(data);
    this.#channel.postMessage({ hello: true });
    hold(SCOPE, this.#turn.signal, () => {
      this.#leading = true;
      this.stream.open();
    });
  }

  stop() {
    this.#turn?.abort();
    this.#turn = null;
    this.#leading = false;
    this.stream.close();
    this.#channel?.close();
    this.#set('closed');
  }

  /** Connect anew when the connection is not known to be good. */
  refresh() {
    if (this.#leading && !this.stream.good) this.stream.open();
  }

  #lead(message) {
    this.#channel.postMessage(message);
    this.#hear(message);
  }

  #receive(message) {
    if (!message.hello) this.#hear(message);
    else if (this.#leading) this.#channel.postMessage({ state: this.#state });
  }

  #hear({ event, state }) {
    if (state) this.#set(state);
    if (!event) return;
    this.stream.last = event[2];
    this.on.event(...event);
  }

  #set(state) {
    if (state === this.#state) return;
    this.#state = state;
    this.on.state(state);
  }
}

/** Begin `work` when one of the few places for a stream of text is free; kept until the signal. */
export async function holdTextPlace(signal, work) {
  const { held } = (await navigator.locks?.query()) ?? { held: [] };
  const free = TEXT_PLACES.find((place) => held.every(({ name }) => name !== place));
  hold(free ?? TEXT_PLACES[0], signal, work);
}

// A lock is given up when its tab goes, too. Without TLS a browser may have none: then all begin.
function hold(name, signal, begin) {
  const held = () => new Promise((release) => {
    if (signal.aborted) return release();
    signal.addEventListener('abort', release);
    begin();
  });
  if (navigator.locks) navigator.locks.request(name, { signal }, held).catch(() => {});
  else held();
}
