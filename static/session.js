/** The key of a server that asks for one: a dialog, and the session that the server makes of it. */

import { ask } from './api.js';
import { one, write } from './dom.js';
import { word } from './words.js';

const KNOWN = 'session';

/** Ask for a key whenever the server refuses for the want of one. */
export function followSession() {
  const dialog = one('dialog');
  const leave = one('[data-action=leave]');
  leave.hidden = !localStorage.getItem(KNOWN);
  addEventListener('slowcall:key', () => dialog.open || dialog.showModal());
  one('form', dialog).addEventListener('submit', (event) => {
    event.preventDefault();
    ask('session', { method: 'POST', body: { key: one('input', dialog).value } }).then(() => {
      localStorage.setItem(KNOWN, 'yes');
      location.reload();
    }, ({ status, message }) => {
      write(one('.fault', dialog), status === 401 ? word('key.wrong') : message || word('fault.away'));
    });
  });
  leave.addEventListener('click', async () => {
    await ask('session', { method: 'DELETE' });
    localStorage.removeItem(KNOWN);
    location.reload();
  });
}
