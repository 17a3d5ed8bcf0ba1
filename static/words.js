/** The page's languages: its words, and numbers, times and durations as the reader writes them. */

import { all } from './dom.js';

export const LANGUAGES = { en: 'English', es: 'Español', fr: 'Français' };

let words = {};
let locale = 'en';

/** The language chosen before, else the browser's first that we speak. */
export function firstLanguage() {
	const wanted = [localStorage.language, ...navigator.languages];
	return wanted.map((tag) => tag?.slice(0, 2)).find((tag) => tag in LANGUAGES) ?? 'en';
}

/** Load a language and put its words into every `data-word` and `data-label` of the page. */
export async function speak(language) {
	words = await (await fetch(new URL(`words/${language}.json`, import.meta.url))).json();
	locale = navigator.languages.find((tag) => tag.startsWith(language)) ?? language;
	document.documentElement.lang = language;
	for (const node of all('[data-word]')) node.textContent = word(node.dataset.word);
	for (const node of all('[data-label]')) node.ariaLabel = word(node.dataset.label);
}

/** The words under `key`, `{name}`s filled from `values`; `values.n` picks the plural form. */
export function word(key, values = {}, otherwise = key) {
	const [group, ...name] = key.split('.');
	let text = words[group]?.[name.join('.')] ?? otherwise;
	if (text.other) text = text[new Intl.PluralRules(locale).select(values.n)] ?? text.other;
	return text.replace(/\{(\w+)\}/g, (_, name) => shown(values[name]));
}

export const wordOr = (key, otherwise) => word(key, {}, otherwise);

export const shown = (value) =>
	typeof value === 'number' ? new Intl.NumberFormat(locale).format(value) : String(value ?? '');

/** A time of day, with another day's date. `at`: ISO text or milliseconds. */
export function time(at) {
	const date = new Date(at);
	const today = date.toDateString() === new Date().toDateString();
	return date.toLocaleString(locale, today ? { timeStyle: 'medium' } : { dateStyle: 'medium', timeStyle: 'short' });
}

/** 40 sec, 3 min, 2.5 hr. */
export function duration(seconds) {
	const [value, unit] =
		seconds < 90 ? [Math.ceil(seconds), 'second']
		: seconds < 5400 ? [Math.round(seconds / 60), 'minute']
		: [Math.round(seconds / 360) / 10, 'hour'];
	return value.toLocaleString(locale, { style: 'unit', unit });
}
