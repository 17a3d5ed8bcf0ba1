/** A shared link: one job, to read only, followed by its own stream. */

import { ask } from './api.js';
import { one, reveal } from './dom.js';
import { FINAL } from './jobs.js';
import { follow } from './watch.js';
import { word } from './words.js';

const query = new URLSearchParams(location.search);
const id = query.get('job');

/** The token of the link that this page was opened by, if it was. */
export const shared = id && query.get('share');

/** Show the one job, live until it is final. `state` is told how the connection is. */
export async function showShared(jobs, state) {
  for (const part of document.querySelectorAll('nav, #new-job')) part.hidden = true;
  const permit = `?share=${encodeURIComponent(shared)}`;
  const path = `jobs/${encodeURIComponent(id)}`;
  const refused = () => reveal(one('[data-notice=page]'), word('notice.gone'));
  const job = await ask(path + permit).catch(refused);
  if (!job) return state('closed');
  jobs.put(job, false);
  const stream = follow(`${path}/stream${permit}`, path + permit, jobs, id, {
    state,
    refused,
    event: (name, data) => {
      if (name === 'progress') jobs.hear(name, data);
      else if (name !== 'delta') jobs.putListed(data);
      if (FINAL.has(data.status) && FINAL.has(jobs.get(id).job.status)) stream.close();
    },
  });
  return undefined;
}
