/** A form made from a JSON schema: a field for each property, and what was typed as JSON again. */

import { make } from './dom.js';
import { word } from './words.js';

// The page has better ways for these: the file input, and a text that is cut into pages.
const UNSHOWN = new Set(['pages', 'file', 'messages', 'sample']);
const MAIN = ['text', 'goal', 'prompt'];
const LIMITS = { minimum: 'min', maximum: 'max', maxLength: 'maxLength', pattern: 'pattern' };

/** The property that the large text field stands for; '' where the input is the text itself; null: none. */
export function mainProperty(kind, schema) {
  if (kind === 'chat' || takes(schema, 'string')) return '';
  const properties = schema.properties ?? {};
  const texts = Object.keys(properties).filter((name) => takes(properties[name], 'string') && !properties[name].enum);
  return [...MAIN, ...(schema.required ?? []), ...texts].find((name) => texts.includes(name)) ?? null;
}

/** The other fields: `[{ name, required, element, read() }]`. `read` raises SyntaxError for bad JSON. */
export function fieldsOf(kind, schema) {
  const main = mainProperty(kind, schema);
  if (main === '') return [];
  return Object.entries(schema.properties ?? {})
    .filter(([name]) => name !== main && !UNSHOWN.has(name))
    .map(([name, property]) => field(name, plain(property, schema), (schema.required ?? []).includes(name)));
}

const takes = (schema, type) => schema?.type === type || (schema?.anyOf ?? []).some((one) => takes(one, type));

// A property without its "or null" and its reference.
function plain({ $ref, anyOf, ...own }, root) {
  const target = $ref?.slice(2).split('/').reduce((at, name) => at?.[name], root);
  const some = target ? [target] : (anyOf ?? []).filter(({ type }) => type !== 'null');
  return some.length === 1 ? { ...plain(some[0], root), ...own } : own;
}

function field(name, property, required) {
  const element = make('label');
  const control = controlOf(property);
  control.required = required && control.type !== 'checkbox';
  element.append(make('span', property.title ?? name), control, make('small', property.description ?? ''));
  return { name, required: control.required, element, read: () => read(control, property) };
}

function controlOf(property) {
  if (property.enum) return choice(property);
  const type = { string: 'text', boolean: 'checkbox', integer: 'number', number: 'number' }[property.type];
  const control = make(type ? 'input' : 'textarea');
  if (!type) return Object.assign(control, { rows: 2, placeholder: word(isLines(property) ? 'form.lines' : 'form.json') });
  for (const name of Object.keys(LIMITS)) if (name in property) control[LIMITS[name]] = property[name];
  return Object.assign(control, { type, step: 'any', checked: property.default === true, placeholder: property.default ?? '' });
}

function choice(property) {
  const select = make('select');
  for (const value of ['default' in property ? [] : '', property.enum].flat()) select.add(new Option(value, value));
  select.value = property.default ?? '';
  return select;
}

const isLines = ({ type, items }) => type === 'array' && items?.type === 'string';

// undefined: left out, so that the kind's own default holds.
function read(control, property) {
  if (control.type === 'checkbox') return control.checked;
  const text = control.value;
  if (!text.trim()) return undefined;
  if (property.enum) return property.enum.find((value) => String(value) === text);
  if (isLines(property)) return text.split('\n').filter((line) => line.trim());
  return property.type === 'string' ? text : JSON.parse(text);
}
