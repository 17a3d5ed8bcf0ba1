/** Small helps with elements: model text only ever becomes text here, never markup. */

export const one = (selector, root = document) => root.querySelector(selector);

export function make(name, text = '') {
  const element = document.createElement(name);
  element.textContent = text;
  return element;
}

/** Set a text, only where it differs: a reader's selection and a screen reader are left alone. */
export function write(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Show an element with this text, or hide it where there is none. */
export function reveal(element, text) {
  write(element, text);
  element.hidden = !text;
}

/** Set an attribute, or take it away (null). */
export function mark(element, name, value) {
  if (value === null) element.removeAttribute(name);
  else if (element.getAttribute(name) !== String(value)) element.setAttribute(name, value);
}

/** A table of `rows` of texts under `heads`. */
export function table(heads, rows) {
  const grid = make('table');
  const head = grid.createTHead().insertRow();
  for (const text of heads) head.append(Object.assign(make('th', text), { scope: 'col' }));
  const body = grid.createTBody();
  for (const row of rows) body.insertRow().append(...row.map((text) => make('td', text)));
  return grid;
}
