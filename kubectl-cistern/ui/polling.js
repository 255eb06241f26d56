// Reads documents of the server again and again, while the page is visible.

/** Time between two questions. An unchanged document is answered without a body. */
const INTERVAL = 2000;

/** A document of the server. */
class Source {
  constructor(name) {
    this.name = name;
    this.tag = null;
    this.data = null;
  }

  /** Reads the document, and returns whether it has changed. */
  async read() {
    const headers = this.tag ? { "If-None-Match": this.tag } : {};
    const response = await fetch(this.name, { headers, cache: "no-store", credentials: "omit" });
    if (response.status === 304) return false;
    if (!response.ok) throw new Error(`${response.status} ${await response.text()}`);
    this.data = await response.json();
    this.tag = response.headers.get("ETag");
    return true;
  }
}

export class Polling {
  /** `changed(name, data)` gets each new document; `failed(error)` gets null after a success. */
  constructor({ changed, failed }) {
    Object.assign(this, { changed, failed });
    const names = ["session", "status", "volumes", "snapshots"];
    this.sources = new Map(names.map((name) => [name, new Source(`${name}.json`)]));
    this.wanted = new Set(["session", "status"]);
    document.addEventListener("visibilitychange", () => this.now());
  }

  /** Selects the documents of the view, besides session and status. */
  want(...names) {
    this.wanted = new Set(["session", "status", ...names]);
    return this.now();
  }

  /** Reads at once, and then at the interval. */
  async now() {
    clearTimeout(this.timer);
    if (this.reading) {
      this.again = true;
      return;
    }
    this.reading = true;
    try {
      for (const name of this.wanted) {
        const source = this.sources.get(name);
        if (await source.read()) this.changed(name, source.data);
      }
      this.failed(null);
    } catch (error) {
      this.failed(error);
    } finally {
      this.reading = false;
    }
    if (this.again) {
      this.again = false;
      this.now();
    } else if (!document.hidden) {
      this.timer = setTimeout(() => this.now(), INTERVAL);
    }
  }
}
