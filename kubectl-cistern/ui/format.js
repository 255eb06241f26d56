// Numbers, sizes and times as people read them. The rules are those of the plugin's tables.

const UNITS = ["Ki", "Mi", "Gi", "Ti", "Pi", "Ei"];
const COUNT = new Intl.NumberFormat("en");
const COLLATOR = new Intl.Collator("en", { numeric: true });

/** Formats a size, rounded down: `1.5Gi`, `738Mi`, `0`. */
export function size(bytes) {
  if (bytes < 1024) return String(bytes);
  let value = bytes / 1024;
  let unit = 0;
  while (value >= 1024 && unit < UNITS.length - 1) {
    value /= 1024;
    unit += 1;
  }
  const tenths = Math.floor(value * 10) / 10;
  const shown = tenths < 100 ? tenths : Math.floor(value);
  return `${shown}${UNITS[unit]}`;
}

/** Formats a number with separators: `10,000`. */
export function count(number) {
  return COUNT.format(number);
}

/** `1 volume`, `2 volumes`. */
export function counted(number, noun) {
  return `${count(number)} ${noun}${number === 1 ? "" : "s"}`;
}

/** Returns the reserved percentage of the usable capacity; null if that is 0. */
export function percent(capacity) {
  return capacity.usableBytes > 0 ? Math.floor((capacity.reservedBytes * 100) / capacity.usableBytes) : null;
}

/** Formats a percentage. */
export function share(capacity) {
  const whole = percent(capacity);
  return whole === null ? "–" : `${whole} %`;
}

/** Formats the time since a timestamp like kubectl: `42s`, `5m`, `3h`, `12d`. */
export function age(timestamp, now = Date.now()) {
  if (!timestamp) return "";
  const seconds = Math.max(0, Math.floor((now - Date.parse(timestamp)) / 1000));
  if (seconds < 120) return `${seconds}s`;
  if (seconds < 2 * 3600) return `${Math.floor(seconds / 60)}m`;
  if (seconds < 2 * 86400) return `${Math.floor(seconds / 3600)}h`;
  return `${Math.floor(seconds / 86400)}d`;
}

/** Formats a timestamp in full, in the time zone of the reader. */
export function time(timestamp) {
  return timestamp ? new Date(timestamp).toLocaleString() : "";
}

/** Formats a claim: `namespace/name`. */
export function claim(reference) {
  return reference ? `${reference.namespace}/${reference.name}` : "";
}

/** Splits CamelCase for people: `ImageMissing` becomes `Image missing`. */
export function words(name) {
  return name.replace(/([a-z])([A-Z])/g, (_, before, after) => `${before} ${after.toLowerCase()}`);
}

/** Compares two values of a column: numbers by size, texts with numbers in their order. */
export function compare(a, b) {
  return typeof a === "number" && typeof b === "number" ? a - b : COLLATOR.compare(String(a), String(b));
}

const texts = new WeakMap();

/** Whether all words of a search occur in the values of an item. */
export function matches(item, search) {
  if (search.length === 0) return true;
  let text = texts.get(item);
  if (text === undefined) {
    text = JSON.stringify(Object.values(item)).toLowerCase();
    texts.set(item, text);
  }
  return search.every((word) => text.includes(word));
}
