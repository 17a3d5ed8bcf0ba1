/** The whole at a glance: workers, queue, lanes, as GET /stats tells them. */

import { make, one } from './dom.js';
import { table } from './table.js';
import { duration, shown, time, wordOr } from './words.js';

/** Draw the figures of `stats`; lists and groups among them become tables. */
export function drawOverview(stats) {
	const [figures, tables] = [[], []];
	for (const [name, value] of Object.entries(stats)) {
		if (isGroup(value)) tables.push(...tableOf(name, value));
		else {
			figures.push(make('div'));
			figures.at(-1).append(make('dt', named(name)), make('dd', amount(name, value)));
		}
	}
	one('.figures').replaceChildren(...figures);
	one('.tables').replaceChildren(...tables);
}

function tableOf(title, group) {
	const rows = Object.entries(group).map(([name, row]) => ({ ...(!Array.isArray(group) && { name }), ...(isGroup(row) ? row : { value: row }) }));
	const columns = [...new Set(rows.flatMap(Object.keys))];
	const cells = rows.map((row) => columns.map((name) => amount(name, row[name])));
	return rows.length ? [make('h3', named(title)), table(columns.map(named), cells)] : [];
}

const isGroup = (value) => value !== null && typeof value === 'object';

const named = (name) => wordOr(`stats.${name}`, name.replaceAll('_', ' '));

function amount(name, value) {
	if (isGroup(value)) return JSON.stringify(value);
	if (/^\d{4}-\d\d-\d\dT/.test(value)) return time(value);
	return typeof value === 'number' && name.endsWith('_s') ? duration(value) : shown(value) || '–';
}
