/** Requests to the server, and its refusals as one kind of error. */

/** A refusal with the server's sentence, or (`status` 0) no answer at all. */
export class Problem extends Error {
	constructor(status, { title = '', detail = title, errors = [] } = {}) {
		super(detail);
		Object.assign(this, { status, errors });
	}
}

/** A place of this server, whatever path it is served under. */
export const address = (path) => new URL(path.replace(/^\//, ''), document.baseURI).href;

/** Ask, and answer the JSON (null for 204). Raises Problem. `body`: a form, or sent as JSON. */
export async function ask(path, method = 'GET', body, headers = {}) {
	const json = body && !(body instanceof FormData);
	if (json) headers['Content-Type'] = 'application/json';
	// Without TLS no browser says whose page this is.
	headers['X-Requested-With'] = 'slowcall';
	const answer = await fetch(address(path), { method, headers, body: json ? JSON.stringify(body) : body }).catch(() => {
		throw new Problem(0);
	});
	const content = await answer.json().catch(() => null);
	if (answer.ok) return content;
	if (answer.status === 401) dispatchEvent(new Event('slowcall:key'));
	throw new Problem(answer.status, content ?? {});
}
