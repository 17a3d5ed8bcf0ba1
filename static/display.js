/** How the page looks to this reader: theme, size, motion, kept in the browser. */

import { make, one } from './dom.js';

const CHOICES = {
	theme: ['system', 'light', 'dark', 'contrast', 'cream'],
	size: ['normal', 'large', 'larger'],
	motion: ['system', 'less'],
};

/** Offer the choices, and apply what was chosen before. */
export function followDisplay() {
	for (const [name, choices] of Object.entries(CHOICES)) {
		const label = make('label');
		const select = make('select');
		select.name = name;
		for (const choice of choices) spoken(select, 'option', choice).value = choice;
		spoken(label, 'span', name);
		label.append(select);
		one('[data-action=leave]').before(label);
		select.value = localStorage[name] ?? choices[0];
		select.onchange = () => {
			localStorage[name] = document.documentElement.dataset[name] = select.value;
		};
		document.documentElement.dataset[name] = select.value;
	}
}

function spoken(parent, name, choice) {
	const element = parent.appendChild(make(name));
	element.dataset.word = `display.${choice}`;
	return element;
}
