/** Small helps with elements: what comes from outside becomes text, never markup. */

export const one = (selector, root = document) => root.querySelector(selector);

export const all = (selector) => document.querySelectorAll(selector);

export const on = (target, event, listener) => target.addEventListener(event, listener);

export const make = (name, text = '') => Object.assign(document.createElement(name), { textContent: text });

/** Set a text where it differs: else a selection and a screen reader are left alone. */
export function write(element, text) {
	if (element.textContent !== text) element.textContent = text;
}

/** Show an element with this text, or hide it where there is none. */
export function reveal(element, text) {
	write(element, text);
	element.hidden = !text;
}
