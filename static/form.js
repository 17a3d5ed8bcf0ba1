/** The form of a new job: its fields by kind, files dropped or pasted, one job for one action. */

import { ask } from './api.js';
import { one } from './dom.js';
import { say } from './say.js';
import { fieldsOf, mainProperty } from './schema.js';
import { word, wordOr } from './words.js';

const DRAFT = 'draft';
const TITLE_LENGTH = 80;

export const form = one('#new-job');
const { kind: kindField, input, file: fileField } = form.elements;
const kinds = new Map();
let fields = [];
let sending = false;
let sent;

/** Start the form; `onSent(job)` is called with each job that the server took. */
export function followForm(onSent) {
  sent = onSent;
  kindField.addEventListener('change', showKind);
  fileField.addEventListener('change', () => hold([...fileField.files]));
  form.addEventListener('input', keep);
  form.addEventListener('submit', (event) => {
    event.preventDefault();
    submit();
  });
  input.addEventListener('keydown', ({ key, ctrlKey, metaKey }) => {
    if (key === 'Enter' && (ctrlKey || metaKey)) form.requestSubmit();
  });
  takeFiles();
}

/** Offer the kinds that the server told, and what was in the form before a reload. */
export function learn(told) {
  for (const kind of told) kinds.set(kind.name, kind);
  const { kind: before = 'chat', text = '' } = draft();
  kindField.replaceChildren(...[...kinds.keys()].map((name) => new Option(name, name)));
  kindField.value = kinds.has(before) ? before : told[0]?.name;
  input.value ||= text;
  showKind();
}

/** Show the fields of the chosen kind, in the page's language. */
export function showKind() {
  const kind = kinds.get(kindField.value);
  if (!kind) return;
  const main = mainProperty(kind.name, kind.input_schema);
  one('.main-field', form).hidden = main === null;
  one('.main-field span', form).textContent = wordOr(`form.main.${kind.name}`, main || word('form.main'));
  one('#about').textContent = wordOr(`kind.${kind.name}`, kind.description);
  fields = fieldsOf(kind.name, kind.input_schema);
  const elements = (needed) => fields.filter(({ required }) => required === needed).map(({ element }) => element);
  const [needed, optional] = form.querySelectorAll('.fields');
  needed.replaceChildren(...elements(true));
  optional.replaceChildren(...elements(false));
  one('.more', form).hidden = !optional.childElementCount;
  one('#files').textContent = [...fileField.files].map(({ name }) => name).join(', ') || word('form.types');
}

// A double click is one action: meanwhile nothing else is sent, and afterwards the form is empty.
async function submit() {
  if (sending) return;
  sending = true;
  fault('');
  try {
    const files = [...fileField.files];
    const bodies = files.length ? files.map(upload) : [written()];
    const key = draft().key ?? keep();
    for (const [place, body] of bodies.entries()) {
      sent(await ask('jobs', { method: 'POST', body, headers: { 'Idempotency-Key': `${key}.${place}` } }));
    }
    clear();
  } catch (problem) {
    const faults = (problem.errors ?? []).map(({ pointer, message }) => `${pointer}: ${message}`);
    fault([problem.message || word('fault.away'), ...faults].join(' '));
  }
  sending = false;
}

function written() {
  const kind = kindField.value;
  const text = input.value;
  const main = mainProperty(kind, kinds.get(kind)?.input_schema ?? {});
  const title = text.trim().replace(/\s+/g, ' ').slice(0, TITLE_LENGTH);
  if (main !== null && !title) throw new Error(word('fault.empty'));
  return { kind, input: main === '' ? text : { ...(main && { [main]: text }), ...values() }, metadata: title ? { title } : {} };
}

function upload(file) {
  const body = new FormData();
  body.set('kind', 'summarize');
  body.set('metadata', JSON.stringify({ title: file.name.slice(0, TITLE_LENGTH) }));
  for (const [name, value] of Object.entries(values())) body.set(name, value);
  body.set('file', file, file.name);
  return body;
}

function values() {
  const read = fields.map((field) => {
    try {
      return [field, field.read()];
    } catch {
      throw new Error(word('fault.json', field));
    }
  });
  const missing = read.find(([{ required }, value]) => required && value === undefined);
  if (missing) throw new Error(word('fault.missing', missing[0]));
  return Object.fromEntries(read.map(([{ name }, value]) => [name, value]).filter(([, value]) => value !== undefined));
}

function clear() {
  const chosen = kindField.value;
  form.reset();
  kindField.value = chosen;
  showKind();
  sessionStorage.removeItem(DRAFT);
}

const fault = (text) => {
  one('#fault').textContent = text;
};

const draft = () => JSON.parse(sessionStorage.getItem(DRAFT) ?? '{}');

// What is in the form is one action with one key, through errors and reloads, until it is changed.
function keep() {
  const bytes = crypto.getRandomValues(new Uint8Array(16));
  const key = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('');
  const text = input.value.length < 1e6 ? input.value : '';
  sessionStorage.setItem(DRAFT, JSON.stringify({ kind: kindField.value, text, key }));
  return key;
}

function hold(files) {
  if (!files.length) return;
  const carrier = new DataTransfer();
  for (const file of files) carrier.items.add(file);
  fileField.files = carrier.files;
  kindField.value = 'summarize';
  showKind();
  keep();
  say(word('said.files', { n: files.length }));
}

function takeFiles() {
  const { classList } = document.body;
  const over = (event) => {
    if (!event.dataTransfer.types.includes('Files')) return;
    event.preventDefault();
    classList.add('dropping');
  };
  addEventListener('dragenter', over);
  addEventListener('dragover', over);
  addEventListener('dragleave', ({ relatedTarget }) => relatedTarget ?? classList.remove('dropping'));
  addEventListener('drop', (event) => {
    classList.remove('dropping');
    const files = [...event.dataTransfer.files];
    if (!files.length) return;
    event.preventDefault();
    hold(files);
    form.requestSubmit();
  });
  addEventListener('paste', ({ clipboardData }) => hold([...clipboardData.files]));
}
