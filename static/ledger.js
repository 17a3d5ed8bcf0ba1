/** The lines of a job's ledger as a table: each call and how it ended. */

import { ask } from './api.js';
import { table } from './table.js';
import { shown, time, word, wordOr } from './words.js';

const COLUMNS = ['step', 'attempt', 'model', 'outcome', 'input_tokens', 'output_tokens', 'started_at'];

/** Read them anew and show them. */
export async function showLines(card) {
	const lines = await ask(`jobs/${card.id}/ledger`).catch(() => []);
	const rows = lines.map((line) => COLUMNS.map((name) => cell(name, line[name])));
	card.find('.lines').replaceChildren(table(COLUMNS.map((name) => word(`line.${name}`)), rows));
}

function cell(name, value) {
	if (name === 'started_at') return time(value);
	return name === 'outcome' ? wordOr(`outcome.${value}`, value) : shown(value);
}
