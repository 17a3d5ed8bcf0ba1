/** Tell a screen reader what matters, in few words: what comes within a second is said at once. */

import { one } from './dom.js';
import { titleOf } from './phrases.js';
import { word } from './words.js';

const GATHER_MS = 1000;
const MOST = 3;
const TOLD = ['retrying', 'done', 'failed', 'cancelled'];

let waiting = [];

/** Say one sentence, politely. */
export function say(sentence) {
	if (waiting.push(sentence) > 1) return;
	setTimeout(() => {
		const n = waiting.length;
		one('#said').textContent = n > MOST ? word('said.many', { n }) : waiting.join(' ');
		waiting = [];
	}, GATHER_MS);
}

/** Say that a job entered a status, where that is worth an interruption. */
export function sayStatus(job) {
	if (TOLD.includes(job.status)) say(`${titleOf(job)}: ${word(`status.${job.status}`)}.`);
}
