// A table of any length. Only the rows in view are in the document; they keep their elements while the data
// changes, so scroll position, focus and selected text stay. The grid itself has the focus, and
// aria-activedescendant names the active row.

import { el, setText } from "./dom.js";
import { compare } from "./format.js";

const ROW = 38;
/** Rows drawn above and below the visible ones. */
const MARGIN = 12;
let grids = 0;

export class Grid {
  /**
   * `columns` have a `title`, a `width` for CSS, `value(item)` to sort by, and `text(item)`, or `draw(cell, item)`
   * for other content. `sortable: false` keeps the order of the items. `open(item)` shows the details of one.
   */
  constructor({ label, columns, key, open, sortable = true, least = "900px" }) {
    Object.assign(this, { columns, key, open, sortable });
    this.id = `grid-${(grids += 1)}`;
    this.items = [];
    this.given = [];
    this.index = new Map();
    this.rows = new Map();
    this.active = null;
    this.order = { column: null, direction: 1 };
    this.head = el("div", { class: "row head", role: "row", "aria-rowindex": 1 });
    this.body = el("div", { class: "body", role: "rowgroup" });
    const headGroup = el("div", { role: "rowgroup", class: "headgroup" }, this.head);
    this.element = el(
      "div",
      {
        class: "grid",
        role: "grid",
        tabindex: 0,
        "aria-label": label,
        "aria-readonly": "true",
        onscroll: () => this.schedule(),
        onkeydown: (event) => this.press(event),
      },
      headGroup,
      this.body,
    );
    headGroup.style.display = "contents";
    this.element.style.setProperty("--columns", columns.map((column) => column.width).join(" "));
    this.element.style.setProperty("--least", least);
    this.drawHead();
    new ResizeObserver(() => this.schedule()).observe(this.element);
  }

  drawHead() {
    this.head.replaceChildren(
      ...this.columns.map((column) => {
        const cell = el("div", { class: `cell ${column.align ?? ""}`, role: "columnheader" });
        if (!this.sortable || !column.title) {
          cell.append(el("span", {}, column.title));
          return cell;
        }
        if (this.order.column === column) {
          cell.setAttribute("aria-sort", this.order.direction > 0 ? "ascending" : "descending");
        }
        cell.append(el("button", { type: "button", onclick: () => this.sortBy(column) }, column.title));
        return cell;
      }),
    );
  }

  /** Sorts by a column; a second time in the other direction, a third time as the data came. */
  sortBy(column) {
    const first = column.descends ? -1 : 1;
    if (this.order.column !== column) this.order = { column, direction: first };
    else if (this.order.direction === first) this.order.direction = -first;
    else this.order = { column: null, direction: 1 };
    const place = this.columns.indexOf(column);
    this.drawHead();
    this.head.children[place].querySelector("button").focus();
    this.show(this.given);
  }

  /** Shows items. The active row and the scroll position stay. */
  show(items) {
    this.given = items;
    const { column, direction } = this.order;
    this.items = items;
    if (column) {
      const value = column.value ?? column.text;
      const pairs = items.map((item) => [value(item), item]);
      pairs.sort((a, b) => direction * compare(a[0], b[0]));
      this.items = pairs.map((pair) => pair[1]);
    }
    this.index = new Map(this.items.map((item, place) => [this.key(item), place]));
    this.body.style.height = `${this.items.length * ROW}px`;
    this.element.setAttribute("aria-rowcount", this.items.length + 1);
    this.draw();
  }

  schedule() {
    this.frame ??= requestAnimationFrame(() => this.draw());
  }

  /** Draws the rows in view. */
  draw() {
    cancelAnimationFrame(this.frame);
    this.frame = undefined;
    const { scrollTop, clientHeight } = this.element;
    const first = Math.max(0, Math.floor(scrollTop / ROW) - MARGIN);
    const last = Math.min(this.items.length, Math.ceil((scrollTop + clientHeight) / ROW) + MARGIN);
    const shown = new Set();
    for (let place = first; place < last; place += 1) {
      const item = this.items[place];
      const key = this.key(item);
      shown.add(key);
      this.drawRow(key, item, place);
    }
    for (const [key, row] of this.rows) {
      if (shown.has(key)) continue;
      row.remove();
      this.rows.delete(key);
    }
    const active = this.rows.get(this.active);
    if (active) this.element.setAttribute("aria-activedescendant", active.id);
    else this.element.removeAttribute("aria-activedescendant");
  }

  drawRow(key, item, place) {
    let row = this.rows.get(key);
    if (!row) {
      row = el("div", { class: "row", role: "row", id: `${this.id}-${(this.made = (this.made ?? 0) + 1)}` });
      row.append(...this.columns.map((column) => el("div", { class: `cell ${column.align ?? ""}`, role: "gridcell" })));
      row.addEventListener("click", () => this.click(key));
      this.rows.set(key, row);
      this.body.append(row);
    }
    row.style.transform = `translateY(${place * ROW}px)`;
    row.setAttribute("aria-rowindex", place + 2);
    row.setAttribute("aria-selected", key === this.active);
    if (row.item === item && row.tick === this.tick) return;
    row.item = item;
    row.tick = this.tick;
    this.columns.forEach((column, number) => {
      const cell = row.children[number];
      if (column.draw) {
        column.draw(cell, item);
      } else {
        const text = column.text(item);
        setText(cell, text);
        cell.title = text;
      }
    });
  }

  /** Draws all texts again, because ages have changed. */
  refresh() {
    this.tick = (this.tick ?? 0) + 1;
    this.draw();
  }

  click(key) {
    // Selecting text is no click.
    if (!getSelection().isCollapsed) return;
    this.active = key;
    this.draw();
    this.open(this.items[this.index.get(key)]);
  }

  /** Makes a row active and scrolls to it. Returns whether there is such a row. */
  activate(key) {
    const place = this.index.get(key);
    if (place === undefined) return false;
    this.active = key;
    const top = place * ROW;
    const { scrollTop, clientHeight } = this.element;
    // The head covers one row.
    if (top < scrollTop) this.element.scrollTop = top;
    else if (top + 2 * ROW > scrollTop + clientHeight) this.element.scrollTop = top + 2 * ROW - clientHeight;
    this.draw();
    return true;
  }

  press(event) {
    if (event.target !== this.element || event.ctrlKey || event.metaKey || event.altKey) return;
    const page = Math.max(1, Math.floor(this.element.clientHeight / ROW) - 2);
    const end = this.items.length - 1;
    const at = this.index.get(this.active) ?? -1;
    const moves = { ArrowDown: at + 1, ArrowUp: at - 1, PageDown: at + page, PageUp: at - page, Home: 0, End: end };
    if (event.key in moves && end >= 0) {
      this.activate(this.key(this.items[Math.min(end, Math.max(0, moves[event.key]))]));
    } else if ((event.key === "Enter" || event.key === " ") && at >= 0) {
      this.open(this.items[at]);
    } else {
      return;
    }
    event.preventDefault();
  }
}
