/** The key of a server that asks for one: a dialog, and the session that the server makes of it. */

import { ask } from './api.js';
import { on, one, write } from './dom.js';
import { word } from './words.js';

const dialog = one('dialog');

on(one('form', dialog), 'submit', async (event) => {
	event.preventDefault();
	try {
		await ask('session', 'POST', { key: one('input', dialog).value });
		localStorage.session = 'open';
		location.reload();
	} catch ({ status, message }) {
		write(one('.fault', dialog), status === 401 ? word('key.wrong') : message || word('fault.away'));
	}
});

export function askForKey() {
	if (!dialog.open) dialog.showModal();
}

export async function leave() {
	await ask('session', 'DELETE');
	delete localStorage.session;
	location.reload();
}
