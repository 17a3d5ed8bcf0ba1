/** A table of texts, for what is looked at on demand. */

import { make } from './dom.js';

export function table(heads, rows) {
	const grid = make('table');
	grid.createTHead().insertRow().append(...heads.map((text) => Object.assign(make('th', text), { scope: 'col' })));
	const body = grid.createTBody();
	for (const row of rows) body.insertRow().append(...row.map((text) => make('td', text)));
	return grid;
}
