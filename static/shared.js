/** A shared link: one job, to read only, followed by its own stream. */

import { all, one, reveal } from './dom.js';
import { FINAL } from './jobs.js';
import { follow } from './watch.js';
import { word } from './words.js';

/** Show the one job, live until it is final. `state` is told how the connection is. */
export function showShared(jobs, id, token, state) {
	for (const part of all('nav, #new-job')) part.hidden = true;
	const stream = follow(jobs, id, `?share=${encodeURIComponent(token)}`, {
		state,
		refused: () => reveal(one('[data-notice=page]'), word('notice.gone')),
		event: (name, data) => {
			if (name === 'progress') jobs.hear(name, data);
			else if (name !== 'delta') jobs.put(data);
			if (name !== 'snapshot' && FINAL.has(data.status)) stream.close();
		},
	});
}
