/** What there is to say about a job, in the reader's words. */

import { FINAL } from './jobs.js';
import { duration, shown, time, word, wordOr } from './words.js';

const OUTCOMES = ['paid', 'open', 'reused', 'unknown', 'rejected', 'not_sent'];

/** A person's name for a job: what the page was told at its submission, else its id. */
export const titleOf = ({ metadata, job_id: id }) => String(metadata?.title || id);

/** "summarize · attempt 2 of 3 · took 40 sec", but for the attempts. */
export function attempts({ attempts: n, max_attempts: max }) {
  return n ? word('card.attempt', { n, max }) : word('card.unstarted');
}

/** How long a final job took from its submission. */
export function took({ created_at: from, finished_at: to }) {
  return to ? word('card.took', { time: duration((Date.parse(to) - Date.parse(from)) / 1000) }) : '';
}

/** What it is doing: "page 7 of 40", "waiting for the model". */
export function doing({ job, highest, total }) {
  const { note } = job.progress;
  const count = total === null || (!highest && job.status !== 'running') ? '' : word('card.of', { done: highest, total });
  if (job.status !== 'running' || !note) return count;
  if (/^page \d+ of \d+$/.test(note)) return word('card.page', { done: highest, total });
  return [count, wordOr(`note.${note}`, note)].filter(Boolean).join(' · ');
}

/** What is ahead of it: its place in the queue, its next attempt, the time it will take. */
export function ahead({ job, at }) {
  const parts = [];
  const pause = job.status === 'retrying' ? (Date.parse(job.retry_at) - Date.now()) / 1000 : 0;
  const left = FINAL.has(job.status) ? 0 : (job.eta_s ?? 0) - (Date.now() - at) / 1000;
  if (job.status === 'queued' && job.queue_position) parts.push(word('card.position', { n: job.queue_position }));
  if (pause > 0) parts.push(word('card.again', { time: duration(pause) }));
  if (left > 0) parts.push(word('card.left', { time: duration(left) }));
  return parts.join(' · ');
}

/** The sums of its ledger; '' while there is nothing in it. */
export function bought({ ledger }) {
  if (!OUTCOMES.some((name) => ledger[name])) return '';
  const parts = OUTCOMES.filter((name) => name === 'paid' || ledger[name]).map((name) => word(`ledger.${name}`, { n: ledger[name] }));
  const { input_tokens: given, output_tokens: got } = ledger;
  return [...parts, ...(given || got ? [word('ledger.tokens', { given, got })] : [])].join(' · ');
}

/** Its error: what happened, what to do, and the upstream's own sentence. */
export function trouble({ status, error }) {
  if (!error) return ['', '', ''];
  const { type, message, attempt: n, upstream_status: upstream } = error;
  const own = upstream ? `${message} (${word('error.status', { status: String(upstream) })})` : message;
  if (status === 'failed') return [word(`error.${type}`), word(`todo.${type}`), own];
  return [word('error.passing', { n, reason: wordOr(`reason.${type}`, type) }), '', own];
}

/** Where the text comes from, where that matters. */
export function source({ result }) {
  const cut = result?.finish_reason === 'length' ? word('source.cut') : '';
  return [wordOr(`source.${result?.source}`, ''), cut].filter(Boolean).join(' ');
}

/** What a retry keeps and buys; `n` is null where nobody knows. */
export const price = ({ kept, n }) =>
  kept || n ? [word('card.keeps', { n: kept }), n === null ? '' : word('card.buys', { n })].join(' ') : '';

/** One entry of a job's time line. */
export const entered = ({ status, at, reason }) =>
  [word(`status.${status}`), reason && `(${wordOr(`reason.${reason}`, reason)})`, at && time(at)].filter(Boolean).join(' ');

/** One value of a ledger's line. */
export function ledgerCell(name, value) {
  if (name === 'started' && value) return time(value);
  return name === 'outcome' ? wordOr(`outcome.${value}`, value) : shown(value);
}
