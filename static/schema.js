/** A form made from a JSON schema: a field for each property, and what was typed as JSON again. */

import { make } from './dom.js';
import { word } from './words.js';

// The page has better ways for these: the file input, and a text that is cut into pages.
const UNSHOWN = ['pages', 'file'];
const TYPES = { string: 'text', boolean: 'checkbox', integer: 'number', number: 'number' };

/** The property for the large text field ('': the input is the text itself; null: there is none), and
 * the other fields: `[{ name, required, element, read() }]`. `read` raises SyntaxError for bad JSON. */
export function readSchema(schema) {
	if (takesText(schema)) return ['', []];
	const { properties = {}, required = [] } = schema;
	const texts = Object.keys(properties).filter((name) => takesText(properties[name]) && !properties[name].enum);
	const main = ['text', 'goal', ...required, ...texts].find((name) => texts.includes(name)) ?? null;
	const others = Object.keys(properties).filter((name) => name !== main && !UNSHOWN.includes(name));
	return [main, others.map((name) => field(name, plain(properties[name], schema), required.includes(name)))];
}

const takesText = ({ type, anyOf = [] }) => type === 'string' || anyOf.some(takesText);

// A property without its "or null" and its reference.
function plain({ $ref, anyOf = [], ...own }, root) {
	const target = $ref?.slice(2).split('/').reduce((at, name) => at?.[name], root);
	const some = target ? [target] : anyOf.filter(({ type }) => type !== 'null');
	return some.length === 1 ? { ...plain(some[0], root), ...own } : own;
}

function field(name, property, required) {
	const element = make('label');
	const control = controlOf(property);
	control.required = required && property.type !== 'boolean';
	element.append(make('span', property.title ?? name), control, make('small', property.description));
	return { name, required: control.required, element, read: () => read(control, property) };
}

function controlOf(property) {
	const { type, default: value = '' } = property;
	if (property.enum) {
		const select = make('select');
		for (const choice of new Set([value, ...property.enum])) select.add(new Option(choice, choice));
		return select;
	}
	if (!TYPES[type]) return Object.assign(make('textarea'), { rows: 2, placeholder: isLines(property) ? word('form.lines') : 'JSON' });
	return Object.assign(make('input'), { type: TYPES[type], step: 'any', checked: value === true, placeholder: value });
}

const isLines = ({ type, items }) => type === 'array' && items?.type === 'string';

// undefined: left out, so that the kind's own default holds.
function read(control, property) {
	const { value: text } = control;
	if (property.type === 'boolean') return control.checked;
	if (!text.trim()) return undefined;
	if (property.enum) return property.enum.find((value) => String(value) === text);
	if (isLines(property)) return text.split('\n').filter((line) => line.trim());
	return property.type === 'string' ? text : JSON.parse(text);
}
