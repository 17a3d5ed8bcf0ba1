/** What a person takes away from a job: its result as a file, a link to it. */

import { address } from './api.js';
import { make, one, reveal } from './dom.js';
import { titleOf } from './phrases.js';
import { word } from './words.js';

/** Save its result as Markdown. */
export function download(job) {
	const title = titleOf(job);
	const link = make('a');
	link.href = URL.createObjectURL(new Blob([`# ${title}\n\n${job.result.text}\n`], { type: 'text/markdown' }));
	link.download = `${title}.md`;
	link.click();
	URL.revokeObjectURL(link.href);
}

/** Show the link to it that anybody may follow. */
export function showLink(card, { url }) {
	const place = card.find('.shared');
	reveal(one('span', place), word('card.shared'));
	place.hidden = false;
	one('input', place).value = address(url);
	one('input', place).select();
}
