/** What a person can do with a job: its card's buttons, what they cost, what was bought. */

import { address, ask } from './api.js';
import { make, one, reveal, table } from './dom.js';
import { ledgerCell, titleOf } from './phrases.js';
import { say } from './say.js';
import { word } from './words.js';

const COLUMNS = ['step', 'attempt', 'model', 'outcome', 'input_tokens', 'output_tokens', 'started'];

/** Wire a new card. `jobs` is told of every answer; `follow(id)` streams its text. */
export function wire(card, jobs, follow) {
  const { id, element } = card;
  const post = (verb) => ask(`jobs/${id}/${verb}`, { method: 'POST' });
  const verbs = {
    watch: () => follow(id),
    cancel: async () => jobs.put(await post('cancel')),
    retry: async () => jobs.put(await post('retry')),
    discard: () => discard(id, jobs),
    copy: () => copy(jobs.get(id).job.result.text),
    download: () => download(jobs.get(id).job),
    share: async () => showLink(card, await post('share')),
  };
  element.addEventListener('click', ({ target }) => {
    const { action } = target.dataset;
    if (action in verbs) attempt(card, target, verbs[action]);
  });
  const look = () => {
    showPrice(card, jobs, post);
    showLines(card);
  };
  for (const event of ['appear', 'drawn']) element.addEventListener(event, look);
  card.find('.ledger').addEventListener('toggle', look);
}

async function attempt(card, button, verb) {
  if (button.ariaDisabled) return;
  button.ariaDisabled = 'true';
  const problem = await Promise.resolve(verb()).then(() => null, (problem) => problem);
  button.ariaDisabled = null;
  reveal(card.find('.fault'), problem ? problem.message || word('fault.away') : '');
}

async function discard(id, jobs) {
  await ask(`jobs/${id}`, { method: 'DELETE' }).catch((problem) => {
    if (problem.status !== 404) throw problem;
  });
  jobs.remove(id);
  say(word('said.discarded'));
}

// Without TLS a browser offers no clipboard but the one of a selection.
async function copy(text) {
  if (navigator.clipboard) await navigator.clipboard.writeText(text);
  else {
    const place = document.body.appendChild(make('textarea', text));
    place.select();
    document.execCommand('copy');
    place.remove();
  }
  say(word('said.copied'));
}

function download(job) {
  const title = titleOf(job);
  const link = make('a');
  link.href = URL.createObjectURL(new Blob([`# ${title}\n\n${job.result.text}\n`], { type: 'text/markdown' }));
  link.download = `${title.replace(/[^\p{L}\p{N}._-]+/gu, '-').slice(0, 60)}.md`;
  link.click();
  URL.revokeObjectURL(link.href);
}

function showLink(card, { url }) {
  const place = card.find('.shared');
  place.hidden = false;
  one('span', place).textContent = word('card.shared');
  one('input', place).value = address(url);
  one('input', place).select();
}

// What a retry would cost is asked for once a life, when somebody sees the card.
async function showPrice(card, jobs, post) {
  const entry = jobs.get(card.id);
  const { top, bottom } = card.element.getBoundingClientRect();
  if (!entry || entry.asked || card.find('[data-action=retry]').hidden || bottom < 0 || top > innerHeight) return;
  entry.asked = true;
  const answer = await post('retry?dry_run=true').catch(() => ({}));
  entry.price = { n: answer.calls_at_most ?? null, kept: answer.steps_kept ?? 0 };
  jobs.changed(card.id);
}

async function showLines(card) {
  if (!card.find('.ledger').open || card.reading) return;
  card.reading = true;
  const lines = await ask(`jobs/${card.id}/ledger`).catch(() => []);
  const rows = lines.map((line) => COLUMNS.map((name) => ledgerCell(name, line[name])));
  card.find('.lines').replaceChildren(table(COLUMNS.map((name) => word(`line.${name}`)), rows));
  card.reading = false;
}
