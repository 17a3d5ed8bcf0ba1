/** One job on the page: a card that shows it and changes only what changed. */

import { make, mark, one, reveal, write } from './dom.js';
import { FINAL } from './jobs.js';
import { ahead, attempts, bought, doing, entered, price, source, titleOf, took, trouble } from './phrases.js';
import { word } from './words.js';

const MOST_CELLS = 200;
const TIMELINE = 8;

export class Card {
  #drawn = '';

  constructor({ job }) {
    this.element = one('#card').content.firstElementChild.cloneNode(true);
    this.id = job.job_id;
    this.element.dataset.jobId = this.id;
    const title = this.find('h3');
    title.id = `job-${this.id}`;
    title.textContent = titleOf(job);
    for (const node of [this.element, this.find('[role=progressbar]'), this.find('[data-part=text]')]) {
      node.setAttribute('aria-labelledby', title.id);
    }
  }

  find(selector) {
    return one(selector, this.element);
  }

  /** Show the entry as it is now. `watching`: its text is streamed into this page. */
  draw(entry, watching, readOnly) {
    const { job } = entry;
    this.element.dataset.status = job.status;
    write(this.find('[data-part=attempts]'), attempts(job));
    this.#bar(entry);
    this.#text(entry);
    const look = JSON.stringify([document.documentElement.lang, job, entry.seen, entry.price, watching]);
    if (look === this.#drawn) return;
    this.#drawn = look;
    write(this.find('.status'), word(`status.${job.status}`));
    write(this.find('.kind-name'), job.kind);
    write(this.find('.took'), took(job));
    this.find('.timeline').replaceChildren(...entry.seen.slice(-TIMELINE).map((one) => make('li', entered(one))));
    this.#cells(entry);
    this.#error(job);
    reveal(this.find('.source'), source(job));
    const sums = bought(job);
    this.find('.ledger').hidden = !sums;
    write(this.find('.ledger summary'), sums);
    this.#actions(entry, watching, readOnly);
    this.element.dispatchEvent(new CustomEvent('drawn'));
  }

  #bar(entry) {
    const { job, highest, total } = entry;
    const bar = this.find('[role=progressbar]');
    const known = total !== null;
    bar.hidden = FINAL.has(job.status) && !known;
    bar.classList.toggle('moving', !known && job.status === 'running');
    mark(bar, 'aria-valuenow', known ? highest : null);
    mark(bar, 'aria-valuemax', total);
    mark(bar, 'aria-valuetext', known ? word('card.of', { done: highest, total }) : null);
    bar.firstElementChild.style.transform = known ? `scaleX(${total ? highest / total : 1})` : '';
    write(this.find('.doing'), doing(entry));
    write(this.find('.ahead'), ahead(entry));
  }

  // One cell for each page. They fill by count: pages end in any order, and nothing says which did.
  #cells({ job, highest, total }) {
    const strip = this.find('.cells');
    const pages = job.kind === 'summarize' && total > 1 && total <= MOST_CELLS ? total : 0;
    while (strip.childElementCount > pages) strip.lastElementChild.remove();
    while (strip.childElementCount < pages) strip.append(make('i'));
    const failed = new Set(job.result?.failed_pages ?? (job.status === 'failed' ? [highest + 1] : []));
    const under = job.status === 'running' ? highest + job.ledger.open : 0;
    for (const [page, cell] of [...strip.children].entries()) {
      cell.className =
        failed.has(page + 1) ? 'failed'
        : page < Math.min(job.ledger.reused, highest) ? 'reused'
        : page < highest ? 'done'
        : page < under ? 'open' : '';
    }
  }

  #text({ job, text }) {
    const place = this.find('[data-part=text]');
    const steps = job.result?.steps ?? (text.size > 1 ? [...text].map(([title, text]) => ({ title, text })) : []);
    const whole = FINAL.has(job.status) ? (job.result?.text ?? '') : ([...text.values()].at(-1) ?? '');
    place.hidden = !whole;
    grow(place, whole);
    this.#steps(Array.isArray(steps) ? steps : [], FINAL.has(job.status));
  }

  // An agent's plan: a step is ticked off when the next one has begun, or the job has ended.
  #steps(steps, ended) {
    const list = this.find('.steps');
    list.hidden = !steps.length;
    while (list.childElementCount > steps.length) list.lastElementChild.remove();
    for (const [place, step] of steps.entries()) {
      const item = list.children[place] ?? list.appendChild(one('#step').content.firstElementChild.cloneNode(true));
      item.dataset.done = ended || place < steps.length - 1;
      write(one('summary', item), String(step.title ?? step.name ?? step.step ?? place + 1));
      write(one('.text', item), String(step.text ?? step.answer ?? ''));
    }
  }

  #error(job) {
    const sentences = trouble(job);
    const place = this.find('.error');
    place.hidden = !sentences[0];
    for (const [at, node] of [...place.children].entries()) write(node, sentences[at]);
  }

  #actions({ job, price: cost }, watching, readOnly) {
    const ended = FINAL.has(job.status);
    const again = !readOnly && ended && job.status !== 'done';
    const apply = {
      watch: job.status === 'running' && !watching,
      cancel: !ended && !readOnly,
      retry: again,
      copy: Boolean(job.result?.text),
      download: Boolean(job.result?.text),
      share: !readOnly,
      discard: ended && !readOnly,
    };
    for (const [action, applies] of Object.entries(apply)) {
      const button = this.find(`[data-action=${action}]`);
      button.hidden = !applies;
      write(button, word(`action.${action}`));
    }
    reveal(this.find('.price'), again && cost ? price(cost) : '');
  }
}

// Streamed text is appended, not written anew: a selection stays, and it costs only what was added.
function grow(place, text) {
  const node = place.firstChild ?? place.appendChild(new Text());
  if (node.data === text) return;
  const follows = place.scrollTop + place.clientHeight >= place.scrollHeight - 8;
  if (text.startsWith(node.data)) node.appendData(text.slice(node.length));
  else node.data = text;
  if (follows && place.clientHeight < place.scrollHeight) place.scrollTop = place.scrollHeight;
}
