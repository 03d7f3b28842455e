// The data of a page: compressed pieces in the page or in files, loaded on demand.

function bytesOf(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

async function unpacked(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// Load a piece from an element of the page, a file in `data/`, or the address in `about.data`.
async function carried(name) {
  const inside = document.getElementById(`data-${name}`);
  if (inside) return unpacked(bytesOf(inside.textContent.trim()));
  const from = site.about.data;
  const answer = await fetch(`${from ?? "data/"}${name}.json.gz`, from ? {} : { cache: "no-store" });
  if (!answer.ok) throw new Error(`${name}: the server said ${answer.status}`);
  return unpacked(new Uint8Array(await answer.arrayBuffer()));
}

const KEPT = 6; // pieces of games in memory
const AHEAD = 4; // pieces of the list that are prefetched while one is processed
const DRAWN_EVERY = 400; // milliseconds between two drawings of a list that is still loading

// The list is stored as one array per column, as it arrives; 100,000 row objects would need ten times the memory.
class Games {
  constructor(about) {
    this.about = about; // {count, lists: [first, ...], pieces: [first, ...]}
    this.columns = new Map();
    this.places = new Map(); // of each id
    this.pieces = new Map();
    this.length = 0;
    this.repeats = false; // whether a datapoint was played more than once
    this.next = 0; // the piece of the list that is read next
    this.ahead = new Map(); // pieces of the list that were requested but not processed yet
  }

  // Load the list piece by piece. `come` is called after the first piece, at intervals, and after the last.
  async read(come) {
    let told = -Infinity;
    while (this.next < this.about.lists.length) {
      const piece = await this.listed();
      this.take(piece);
      this.next++;
      if (this.next < this.about.lists.length && performance.now() - told < DRAWN_EVERY) continue;
      await come(this.length);
      told = performance.now();
    }
  }

  // Return the next piece of the list, and prefetch those after it.
  listed() {
    const end = Math.min(this.next + AHEAD, this.about.lists.length);
    for (let number = this.next; number < end; number++) {
      if (this.ahead.has(number)) continue;
      const coming = carried(`${this.about.slug}-list-${number}`);
      coming.catch(() => {}); // the error reaches the code that awaits the piece
      this.ahead.set(number, coming);
    }
    const found = this.ahead.get(this.next);
    this.ahead.delete(this.next);
    return found;
  }

  take({ first, count: there, columns }) {
    const count = Math.min(there, this.about.count - first); // a server may have more games than it has announced
    columns.tokens = columns.prompt_tokens.map((asked, at) => asked + columns.completion_tokens[at]);
    for (const [name, values] of Object.entries(columns)) {
      let column = this.columns.get(name);
      if (!column) this.columns.set(name, (column = new Array(first).fill(null)));
      for (let at = 0; at < count; at++) column[first + at] = values[at];
    }
    for (let at = 0; at < count; at++) this.places.set(columns.id[at], first + at);
    this.repeats ||= columns.repeat.some((repeat) => repeat > 0);
    this.length = Math.max(this.length, first + count);
  }

  // The page has more games than before: load the last pieces again, which may have grown.
  grown(about) {
    this.pieces.delete(this.about.pieces.length - 1);
    Object.assign(this.about, about);
    this.ahead.clear();
    this.next = Math.max(0, this.next - 1);
  }

  value(name, place) {
    return this.columns.get(name)?.[place] ?? null;
  }

  // Return a row as an object, for rows that are visible.
  at(place) {
    const row = { place };
    for (const [name, values] of this.columns) row[name] = values[place] ?? null;
    return row;
  }

  row(id) {
    const place = this.places.get(id);
    return place === undefined ? undefined : this.at(place);
  }

  async game(place) {
    const number = this.about.pieces.findLastIndex((first) => first <= place);
    const piece = await this.piece(number);
    return { ...piece.games[place - piece.first], read: (text) => read(piece.texts, text) };
  }

  async piece(number) {
    let found = this.pieces.get(number);
    this.pieces.delete(number);
    found ??= carried(`${this.about.slug}-games-${number}`);
    this.pieces.set(number, found); // most recently used, so it is dropped last
    if (this.pieces.size > KEPT) this.pieces.delete(this.pieces.keys().next().value);
    return found;
  }
}

function read(texts, text) {
  if (typeof text === "number") return texts[text];
  return Array.isArray(text) ? text.map((part) => read(texts, part)).join("") : (text ?? "");
}

// Let the page draw and handle keys before work continues.
function pause() {
  return new Promise((go) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => { port1.close(); go(); };
    port2.postMessage(0);
  });
}
