// A view with one table: its title, its legend, the table, and what to read if there is nothing in it.

import { el, setText } from "./dom.js";
import { count, matches } from "./format.js";
import { Grid } from "./grid.js";

export class Table {
  /**
   * `rows(data)` returns the items, or null if they are not known yet; `keep(items, search)` replaces the filter;
   * `describe(item, data)` returns the details of one.
   */
  constructor({ name, needs, rows, keep, columns, key, describe, empty, legend, sortable, least, open }) {
    Object.assign(this, { name, needs, rows, keep, key, describe });
    this.title = el("h2", {});
    this.grid = new Grid({ label: name, columns, key, sortable, least, open: (item) => open(key(item)) });
    this.nothing = el("div", { class: "empty" });
    this.empty = empty;
    this.element = el(
      "div",
      { class: "table" },
      el("div", { class: "tools" }, this.title, el("span", { class: "quiet" }, "↑ ↓ select, Enter shows details, Escape closes"), legend),
      this.grid.element,
      this.nothing,
    );
    this.items = [];
  }

  show(data, search) {
    const source = data[this.needs[0] ?? "status"];
    if (!source) {
      this.title.textContent = "Reading …";
      this.grid.element.hidden = true;
      return;
    }
    // The items stay the same objects while the document does, so that rows are not drawn again.
    if (source !== this.source || data.status !== this.status) this.items = this.rows(data);
    Object.assign(this, { source, status: data.status });
    const shown = this.keep ? this.keep(this.items, search) : this.items.filter((item) => matches(item, search));
    const whole = count(this.items.length);
    const number = shown.length === this.items.length ? whole : `${count(shown.length)} of ${whole}`;
    setText(this.title, `${this.name} (${number})`);
    this.grid.element.hidden = shown.length === 0;
    this.nothing.hidden = shown.length > 0;
    if (shown.length === 0) {
      const filtered = [el("h2", {}, "Nothing matches the filter"), el("p", {}, "Escape in the filter field clears it.")];
      this.nothing.replaceChildren(...(this.items.length > 0 ? filtered : this.empty()));
    }
    this.grid.show(shown);
  }

  /** Returns the details of an item, or null if it does not exist. */
  details(key, data) {
    const item = this.items.find((it) => this.key(it) === key);
    return item ? this.describe(item, data) : null;
  }

  /** Shows the ages as they are now. */
  refresh() {
    this.grid.refresh();
  }
}
