// The data of a page: compressed pieces in the page or in files, loaded on demand.

function bytesOf(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

async function unpack(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// Load a piece from an element of the page, a file in `data/`, or the address in `about.data`.
async function loadPiece(name) {
  const inside = document.getElementById(`data-${name}`);
  if (inside) return unpack(bytesOf(inside.textContent.trim()));
  if (location.protocol === "file:") throw new Error("a browser reads no other files from disk; serve this folder, for example with `python -m http.server`, and open its address");
  const folder = site.about.data;
  const answer = await fetch(`${folder ?? "data/"}${name}.json.gz`, folder ? {} : { cache: "no-store" });
  if (!answer.ok) throw new Error(`${name}: the server said ${answer.status}`);
  return unpack(new Uint8Array(await answer.arrayBuffer()));
}

const MAX_PIECES = 6; // pieces of games in memory
const PREFETCHED = 4; // pieces of the list that are requested in advance
const DRAWN_EVERY = 400; // milliseconds between two drawings of a list that is still loading

// The list is stored as one array per column, as it arrives; 100,000 row objects would need ten times the memory.
class Games {
  constructor(about) {
    this.about = about; // {count, lists: [first, ...], pieces: [first, ...]}
    this.columns = new Map();
    this.places = new Map(); // from the id of a game to its place in the columns
    this.pieces = new Map();
    this.length = 0;
    this.repeats = false; // whether a datapoint was played more than once
    this.next = 0; // the number of the next piece of the list
    this.prefetched = new Map(); // pieces of the list that were requested but not processed yet
  }

  // Load the list piece by piece. `onProgress` is called after the first piece, at intervals, and after the last.
  async read(onProgress) {
    let lastDrawn = -Infinity;
    while (this.next < this.about.lists.length) {
      const piece = await this.nextListPiece();
      this.take(piece);
      this.next++;
      if (this.next < this.about.lists.length && performance.now() - lastDrawn < DRAWN_EVERY) continue;
      await onProgress(this.length);
      lastDrawn = performance.now();
    }
  }

  // Return the next piece of the list, and prefetch those after it.
  nextListPiece() {
    const end = Math.min(this.next + PREFETCHED, this.about.lists.length);
    for (let number = this.next; number < end; number++) {
      if (this.prefetched.has(number)) continue;
      const loading = loadPiece(`${this.about.slug}-list-${number}`);
      loading.catch(() => {}); // the error reaches the code that awaits the piece
      this.prefetched.set(number, loading);
    }
    const piece = this.prefetched.get(this.next);
    this.prefetched.delete(this.next);
    return piece;
  }

  take({ first, count: announced, columns }) {
    const count = Math.min(announced, this.about.count - first); // a server may have more games than it announced
    columns.tokens = columns.prompt_tokens.map((prompt, index) => prompt + columns.completion_tokens[index]);
    for (const [name, values] of Object.entries(columns)) {
      let column = this.columns.get(name);
      if (!column) this.columns.set(name, (column = new Array(first).fill(null)));
      for (let index = 0; index < count; index++) column[first + index] = values[index];
    }
    for (let index = 0; index < count; index++) this.places.set(columns.id[index], first + index);
    this.repeats ||= columns.repeat.some((repeat) => repeat > 0);
    this.length = Math.max(this.length, first + count);
  }

  // Prepare to read a list that has become longer: its last pieces are loaded again, since they may have grown.
  extend(about) {
    this.pieces.delete(this.about.pieces.length - 1);
    Object.assign(this.about, about);
    this.prefetched.clear();
    this.next = Math.max(0, this.next - 1);
  }

  value(name, place) {
    return this.columns.get(name)?.[place] ?? null;
  }

  // Return a row as an object; only visible rows need one.
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
    let piece = this.pieces.get(number);
    this.pieces.delete(number);
    piece ??= loadPiece(`${this.about.slug}-games-${number}`);
    this.pieces.set(number, piece); // moved to the end: the piece that was used least recently is dropped first
    if (this.pieces.size > MAX_PIECES) this.pieces.delete(this.pieces.keys().next().value);
    return piece;
  }
}

function read(texts, text) {
  if (typeof text === "number") return texts[text];
  return Array.isArray(text) ? text.map((part) => read(texts, part)).join("") : (text ?? "");
}

// Let the page draw and handle keys before work continues.
function pause() {
  return new Promise((resolve) => {
    const { port1, port2 } = new MessageChannel();
    port1.onmessage = () => { port1.close(); resolve(null); };
    port2.postMessage(0);
  });
}
