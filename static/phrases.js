/** What there is to say about a job, in the reader's words. */

import { FINAL } from './jobs.js';
import { duration, time, word, wordOr } from './words.js';

const OUTCOMES = ['paid', 'open', 'reused', 'unknown', 'rejected', 'not_sent'];

const joined = (parts, sign = ' ') => parts.filter(Boolean).join(sign);

/** A person's name for a job: what the page was told at its submission, else its id. */
export const titleOf = ({ metadata, job_id: id }) => String(metadata?.title || id);

export const attempts = ({ attempts: n, max_attempts: max }) =>
	n ? word('card.attempt', { n, max }) : word('card.unstarted');

export const took = ({ created_at: from, finished_at: to }) =>
	to ? word('card.took', { time: duration((Date.parse(to) - Date.parse(from)) / 1000) }) : '';

/** What it is doing: "page 7 of 40", "waiting for the model". */
export function doing({ job: { status, progress }, highest, total }) {
	const note = status === 'running' ? (progress.note ?? '') : '';
	const pages = /^page \d+ of \d+$/.test(note);
	const count = total && (highest || note) ? word(pages ? 'card.page' : 'card.of', { done: highest, total }) : '';
	return joined([count, !pages && note && wordOr(`note.${note}`, note)], ' · ');
}

/** Its place in the queue, its next attempt, the time it will take. */
export function ahead({ job: { status, queue_position: n, retry_at: again, eta_s: eta }, at }) {
	const pause = status === 'retrying' ? (Date.parse(again) - Date.now()) / 1000 : 0;
	const left = FINAL.has(status) ? 0 : (eta ?? 0) - (Date.now() - at) / 1000;
	return joined([
		status === 'queued' && n && word('card.position', { n }),
		pause > 0 && word('card.again', { time: duration(pause) }),
		left > 0 && word('card.left', { time: duration(left) }),
	], ' · ');
}

/** The sums of its ledger; '' while there is nothing in it. */
export function bought({ ledger }) {
	if (!OUTCOMES.some((name) => ledger[name])) return '';
	const { input_tokens: given, output_tokens: got } = ledger;
	return joined([
		...OUTCOMES.map((name) => (name === 'paid' || ledger[name]) && word(`ledger.${name}`, { n: ledger[name] })),
		(given || got) && word('ledger.tokens', { given, got }),
	], ' · ');
}

/** Its error: what happened, what to do, and the upstream's own sentence. */
export function trouble({ status, error }) {
	if (!error) return [];
	const { type, message, attempt: n, upstream_status: code } = error;
	const own = joined([message, code && `(${word('error.status', { status: String(code) })})`]);
	if (status === 'failed') return [word(`error.${type}`), word(`todo.${type}`), own];
	return [word('error.passing', { n, reason: wordOr(`reason.${type}`, type) }), '', own];
}

/** Where the text comes from and whether it is whole. */
export const source = ({ result }) =>
	joined([wordOr(`source.${result?.source}`, ''), result?.finish_reason === 'length' && word('source.cut')]);

/** What a retry keeps and buys, as far as that is known. */
export const price = ({ steps_kept: kept = 0, calls_at_most: n }) =>
	joined([(kept || n) && word('card.keeps', { n: kept }), n && word('card.buys', { n })]);

export const entered = ({ status, at, reason }) =>
	joined([word(`status.${status}`), reason && `(${wordOr(`reason.${reason}`, reason)})`, at && time(at)]);
