/** The whole at a glance: workers, queue, lanes, as GET /stats tells them. */

import { make, one, table } from './dom.js';
import { duration, shown, wordOr } from './words.js';

/** Draw the figures of `stats`; lists and groups of figures among them become tables. */
export function drawOverview(stats) {
  const all = Object.entries(stats);
  one('.figures').replaceChildren(...all.filter(([, value]) => !isGroup(value)).map(([name, value]) => {
    const pair = make('div');
    pair.append(make('dt', named(name)), make('dd', amount(name, value)));
    return pair;
  }));
  one('.tables').replaceChildren(...all.filter(([, value]) => isGroup(value)).flatMap(([name, value]) => {
    const rows = Object.entries(value).map(([name, row]) => ({
      ...(!Array.isArray(value) && { name }), ...(isGroup(row) ? row : { value: row }),
    }));
    const columns = [...new Set(rows.flatMap(Object.keys))];
    if (!rows.length) return [];
    return [make('h3', named(name)), table(columns.map(named), rows.map((row) => columns.map((column) => amount(column, row[column]))))];
  }));
}

const isGroup = (value) => value !== null && typeof value === 'object';

const named = (name) => wordOr(`stats.${name}`, name.replaceAll('_', ' '));

function amount(name, value) {
  if (isGroup(value)) return JSON.stringify(value);
  return typeof value === 'number' && name.endsWith('_s') ? duration(value) : shown(value) || '–';
}
