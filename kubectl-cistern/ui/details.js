// The panel with all that is known about one object. It is not modal: the table behind it stays usable.

import { el } from "./dom.js";

export class Details {
  /** `closed()` is called when the person closes the panel. */
  constructor(element, closed) {
    this.element = element;
    this.closed = closed;
    this.content = null;
  }

  get isOpen() {
    return !this.element.hidden;
  }

  /**
   * Shows an object as `{ kind, title, facts: [name, text or element][], sections: element[], of }`. It is drawn
   * again only if `of` has changed, so that a selection in it is kept.
   */
  show({ kind, title, facts, sections = [], of }) {
    const content = JSON.stringify([kind, title, of]);
    if (this.isOpen && this.content === content) return;
    const hadFocus = this.element.contains(document.activeElement);
    const place = this.element.scrollTop;
    this.content = content;
    const close = el("button", { class: "button", type: "button", "aria-keyshortcuts": "Escape", onclick: () => this.closed() }, "Close");
    const known = facts.filter(([, value]) => value !== "" && value !== null && value !== undefined);
    this.element.replaceChildren(
      el("header", {}, el("div", {}, el("p", { class: "kind" }, kind), el("h2", { id: "details-title" }, title)), close),
      el("dl", {}, known.flatMap(([name, value]) => [el("dt", {}, name), el("dd", {}, value)])),
      ...sections,
    );
    this.element.hidden = false;
    this.element.scrollTop = place;
    if (hadFocus) close.focus();
  }

  hide() {
    this.element.hidden = true;
    this.element.replaceChildren();
    this.content = null;
  }
}
