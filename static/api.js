/** Requests to the server, and its refusals as one kind of error. */

/** A refusal, or no answer at all (`status` 0). `detail` is the server's sentence. */
export class Problem extends Error {
  constructor(status, { title, detail, errors } = {}) {
    super(detail || title || '');
    this.status = status;
    this.errors = errors ?? [];
  }

  /** Whether asking again later may help: nobody answered, or the server cannot just now. */
  get passing() {
    return this.status === 0 || this.status === 429 || this.status >= 500;
  }
}

/** A place of this server, whatever path it is served under. */
export const address = (path) => new URL(path.replace(/^\//, ''), document.baseURI).href;

/** Ask and answer the JSON (null for 204). Raises Problem. `body`: a FormData, or sent as JSON. */
export async function ask(path, { method = 'GET', body, headers = {} } = {}) {
  const form = body instanceof FormData;
  if (body !== undefined && !form) headers = { 'Content-Type': 'application/json', ...headers };
  let answer;
  try {
    answer = await fetch(address(path), {
      method, headers, cache: 'no-store', body: form || body === undefined ? body : JSON.stringify(body),
    });
  } catch {
    throw new Problem(0);
  }
  const content = await answer.json().catch(() => null);
  if (answer.ok) return content;
  if (answer.status === 401) dispatchEvent(new Event('slowcall:key'));
  throw new Problem(answer.status, content ?? {});
}
