/** The form of a new job: its fields by kind, files dropped or pasted, one job for one action. */

import { ask } from './api.js';
import { on, one, write } from './dom.js';
import { say } from './say.js';
import { word, wordOr } from './words.js';

const TITLE_LENGTH = 80;
const LONGEST_DRAFT = 100000;

export const form = one('#new-job');
const { kind: kindField, input, file: fileField } = form.elements;
const kinds = new Map();
let [main, fields] = ['', []];
let sending = false;
let ready;

/** `sent(job)`: the server took it. */
export function followForm(sent) {
	on(kindField, 'change', showKind);
	on(fileField, 'change', () => hold(fileField.files));
	on(form, 'input', keep);
	on(form, 'submit', (event) => {
		event.preventDefault();
		submit(sent);
	});
	on(input, 'keydown', ({ key, ctrlKey, metaKey }) => {
		if (key === 'Enter' && (ctrlKey || metaKey)) form.requestSubmit();
	});
	on(window, 'paste', ({ clipboardData }) => hold(clipboardData.files));
	takeDrops();
}

/** Offer the server's kinds, and what a reload left in the form. */
export function learn(told) {
	for (const kind of told) kinds.set(kind.name, kind);
	const { kind = 'chat', text = '' } = draft();
	kindField.replaceChildren(...[...kinds.keys()].map((name) => new Option(name, name)));
	kindField.value = kinds.has(kind) ? kind : told[0]?.name;
	input.value ||= text;
	showKind();
}

/** Show the fields of the chosen kind, in the page's language. */
export const showKind = () => (ready = drawKind());

// `main`: the property in the large text field; '' where the input is the text itself; null: none.
async function drawKind() {
	const kind = kinds.get(kindField.value);
	if (!kind) return;
	if (kind.name === 'chat') [main, fields] = ['', []];
	else [main, fields] = (await import('./schema.js')).readSchema(kind.input_schema);
	if (kind.name !== kindField.value) return;
	one('.main-field').hidden = main === null;
	write(one('.main-field span'), wordOr(`form.main.${kind.name}`, main || word('form.main')));
	write(one('#about'), wordOr(`kind.${kind.name}`, kind.description));
	write(one('#files'), [...fileField.files].map(({ name }) => name).join(', ') || word('form.types'));
	const [needed, optional] = form.querySelectorAll('.fields');
	for (const place of [needed, optional]) place.replaceChildren();
	for (const { required, element } of fields) (required ? needed : optional).append(element);
	one('.more').hidden = !optional.childElementCount;
}

// A double click is one action: nothing else is sent meanwhile. What is new in the form by then stays.
async function submit(sent) {
	if (sending) return;
	sending = true;
	try {
		write(one('#fault'), '');
		await ready;
		const files = [...fileField.files];
		const text = input.value;
		const key = draft().key ?? keep();
		for (const [place, body] of (files.length ? files.map(upload) : [written()]).entries()) {
			sent(await ask('jobs', 'POST', body, { 'Idempotency-Key': `${key}.${place}` }));
		}
		const kind = kindField.value;
		const same = [...fileField.files].every((file, place) => file === files[place]);
		if (same && input.value === text) form.reset();
		kindField.value = kind;
		delete sessionStorage.draft;
		showKind();
	} catch ({ message, errors = [] }) {
		const faults = errors.map(({ pointer, message }) => `${pointer}: ${message}`);
		write(one('#fault'), [message || word('fault.away'), ...faults].join(' '));
	}
	sending = false;
}

function written() {
	const kind = kindField.value || 'chat';
	const text = input.value;
	const title = text.trim().replace(/\s+/g, ' ').slice(0, TITLE_LENGTH);
	if (main !== null && !title) throw new Error(word('fault.empty'));
	return { kind, input: main === '' ? text : { ...(main && { [main]: text }), ...values() }, metadata: { title } };
}

function upload(file) {
	const body = new FormData();
	const metadata = JSON.stringify({ title: file.name.slice(0, TITLE_LENGTH) });
	for (const [name, value] of Object.entries({ kind: 'summarize', metadata, ...values(), file })) body.set(name, value);
	return body;
}

function values() {
	const found = {};
	for (const { name, required, read } of fields) {
		try {
			found[name] = read();
		} catch {
			throw new Error(word('fault.json', { name }));
		}
		if (required && found[name] === undefined) throw new Error(word('fault.missing', { name }));
		if (found[name] === undefined) delete found[name];
	}
	return found;
}

const draft = () => JSON.parse(sessionStorage.draft ?? '{}');

// What is in the form is one action with one key, through errors and reloads, until it is changed.
function keep() {
	const key = crypto.getRandomValues(new Uint32Array(4)).join('-');
	const kind = fileField.files.length ? 'summarize' : kindField.value;
	sessionStorage.draft = JSON.stringify({ kind, key, text: input.value.length > LONGEST_DRAFT ? '' : input.value });
	return key;
}

function hold(files) {
	if (!files.length) return;
	fileField.files = files;
	kindField.value = 'summarize';
	keep();
	showKind();
	say(word('said.files', { n: files.length }));
}

function takeDrops() {
	const over = (event) => {
		const files = event.dataTransfer.types.includes('Files');
		document.body.classList.toggle('dropping', files && event.type === 'dragover');
		if (files) event.preventDefault();
	};
	for (const name of ['dragover', 'dragleave', 'drop']) on(window, name, over);
	on(window, 'drop', ({ dataTransfer }) => {
		hold(dataTransfer.files);
		if (dataTransfer.files.length) form.requestSubmit();
	});
}
