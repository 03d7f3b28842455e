// The data of a page: compressed pieces, in the page itself or beside it, read when they are asked for.

const CODES = (() => {
  const found = new Int16Array(128).fill(-1);
  let value = 0;
  for (let code = 33; code < 127; code++) {
    if ("\"&'<>\\`$-".includes(String.fromCharCode(code)) || value === 85) continue;
    found[code] = value++;
  }
  return found;
})();

function bytesOf(text) {
  const missing = (5 - (text.length % 5)) % 5;
  const bytes = new Uint8Array(((text.length + missing) / 5) * 4);
  for (let at = 0, to = 0; at < text.length; at += 5, to += 4) {
    let word = 0;
    for (let place = 0; place < 5; place++) {
      word = word * 85 + (at + place < text.length ? CODES[text.charCodeAt(at + place)] : 84);
    }
    bytes[to] = word >>> 24;
    bytes[to + 1] = word >>> 16;
    bytes[to + 2] = word >>> 8;
    bytes[to + 3] = word;
  }
  return bytes.subarray(0, bytes.length - missing);
}

async function unpacked(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
  return JSON.parse(await new Response(stream).text());
}

// Where pieces come from: an element of the page, else a file beside it.
async function carried(name) {
  const inside = document.getElementById(`data-${name}`);
  if (inside) return unpacked(bytesOf(inside.textContent.trim()));
  const answer = await fetch(`data/${name}.json.gz`, { cache: "no-store" });
  if (!answer.ok) throw new Error(`${name}: the server said ${answer.status}`);
  return unpacked(new Uint8Array(await answer.arrayBuffer()));
}

const KEPT = 6; // pieces of games in memory

class Games {
  constructor(about) {
    this.about = about; // {count, lists: [first, ...], pieces: [first, ...]}
    this.rows = [];
    this.places = new Map();
    this.pieces = new Map();
  }

  // The list, piece by piece: `come` is told after each.
  async read(come) {
    for (let number = this.read_ ?? 0; number < this.about.lists.length; number++) {
      const piece = await carried(`${this.about.slug}-list-${number}`);
      const names = Object.keys(piece.columns);
      for (let at = 0; at < piece.count; at++) {
        if (piece.first + at !== this.rows.length || this.rows.length >= this.about.count) continue; // there, or not told of yet
        const row = { place: this.rows.length };
        for (const name of names) row[name] = piece.columns[name][at];
        this.places.set(row.id, row.place);
        this.rows.push(row);
      }
      this.read_ = number + 1;
      come(this.rows.length);
    }
  }

  row(id) {
    return this.rows[this.places.get(id)];
  }

  async game(place) {
    let number = this.about.pieces.findLastIndex((first) => first <= place);
    const piece = await this.piece(number);
    return { ...piece.games[place - piece.first], read: (text) => read(piece.texts, text) };
  }

  async piece(number) {
    let found = this.pieces.get(number);
    this.pieces.delete(number);
    found ??= carried(`${this.about.slug}-games-${number}`);
    this.pieces.set(number, found); // the last that is thrown away
    if (this.pieces.size > KEPT) this.pieces.delete(this.pieces.keys().next().value);
    return found;
  }
}

function read(texts, text) {
  if (typeof text === "number") return texts[text];
  return Array.isArray(text) ? text.map((part) => read(texts, part)).join("") : (text ?? "");
}
