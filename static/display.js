/** How the page looks to this reader: theme, size, motion, kept in the browser. */

import { one } from './dom.js';

/** Apply what was chosen before, and follow the selects. */
export function followDisplay() {
  for (const name of ['theme', 'size', 'motion']) {
    const select = one(`select[name=${name}]`);
    select.value = localStorage.getItem(name) ?? select.value;
    const apply = () => {
      document.documentElement.dataset[name] = select.value;
    };
    select.addEventListener('change', () => {
      localStorage.setItem(name, select.value);
      apply();
    });
    apply();
  }
}
