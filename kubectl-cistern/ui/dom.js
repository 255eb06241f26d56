// Elements of the page. Every text becomes a text node, never HTML: names and messages come from the cluster.

/** Creates an element. Properties with null or false are left out; children are elements or texts. */
export function el(tag, properties = {}, ...children) {
  const element = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name === "class") element.className = value;
    else if (name.startsWith("on")) element.addEventListener(name.slice(2), value);
    else element.setAttribute(name, value === true ? "" : value);
  }
  element.append(...children.flat().filter((child) => child !== null && child !== undefined && child !== false));
  return element;
}

/** Sets a text only if it differs, so that a selection in it is kept. */
export function setText(element, text) {
  if (element.textContent !== text) element.textContent = text;
}

/** Splits a message at backticks and shows the commands in it as code. */
export function message(text) {
  return text.split("`").map((part, index) => (index % 2 ? el("code", {}, part) : part));
}

/** Shows a state in a colour and a shape. */
export function badge(text, tone) {
  return el("span", { class: `badge ${tone}` }, text);
}

/** Fills `parent` with items, each of which is drawn again only if it has changed. Keeps focus and selection. */
export function fill(parent, items, key, draw) {
  const known = new Map([...parent.children].map((child) => [child.dataset.key, child]));
  const times = new Map();
  let place = parent.firstElementChild;
  for (const item of items) {
    // Two items may have the same key, such as two findings about one file.
    const time = (times.get(key(item)) ?? 0) + 1;
    times.set(key(item), time);
    const name = `${key(item)}\n${time}`;
    const content = JSON.stringify(item);
    let child = known.get(name);
    known.delete(name);
    if (!child || child.content !== content) {
      const drawn = draw(item);
      drawn.dataset.key = name;
      drawn.content = content;
      if (child) {
        replace(child, drawn);
        if (place === child) place = drawn;
      }
      child = drawn;
    }
    if (child === place) place = place.nextElementSibling;
    else parent.insertBefore(child, place);
  }
  for (const child of known.values()) child.remove();
}

/** Replaces an element, and puts the focus on the same descendant of the new one. */
function replace(old, drawn) {
  const focusable = "a, button";
  const index = [...old.querySelectorAll(focusable)].indexOf(document.activeElement);
  old.replaceWith(drawn);
  if (index >= 0) drawn.querySelectorAll(focusable)[index]?.focus();
}
