// The list of games: filters, order and search are in the address, and only visible rows are elements.

const ROW = 34; // pixels, as in the style sheet
const BEYOND = 12; // rows above and below those in sight
const PRINTED = 1000; // rows at most

const count = (number) => number.toLocaleString("en");

const COLUMNS = {
  __proto__: null,
  datapoint: { title: "Datapoint" },
  repeat: { title: "Repeat", number: true },
  label: { title: "Label", cell: (row) => verdictWord(row.label) ?? "not known" },
  decision: { title: "Verdict", cell: (row) => verdictWord(row.decision) ?? "none" },
  correct: { title: "Result", room: 8, cell: (row) => verdictMark(row) },
  outcome: { title: "Outcome", room: 8, cell: (row) => row.outcome.replaceAll("_", " ") },
  stance: { title: "Stance", cell: (row) => verdictWord(row.stance) ?? "" },
  swapped: { title: "Swapped", cell: (row) => (row.swapped === null ? "" : row.swapped ? "yes" : "no") },
  stances_exchanged: { title: "Stances exchanged", cell: (row) => (row.stances_exchanged === null ? "" : row.stances_exchanged ? "yes" : "no") },
  confidence: { title: "P(accept)", number: true, cell: (row) => (typeof row.confidence === "number" ? rounded(row.confidence, 3) : "") },
  rounds: { title: "Rounds", number: true },
  retries: { title: "Retries", number: true, cell: (row) => row.retries || "" },
  failed_calls: { title: "Failed calls", number: true, cell: (row) => row.failed_calls || "" },
  tokens: { title: "Tokens", number: true, cell: (row) => count(row.tokens) },
  prompt_tokens: { title: "Prompt tokens", number: true, cell: (row) => count(row.prompt_tokens) },
  completion_tokens: { title: "Answer tokens", number: true, cell: (row) => count(row.completion_tokens) },
  latency_ms: { title: "Seconds", number: true, cell: (row) => (row.latency_ms / 1000).toFixed(1) },
  group: { title: "Group" },
  error: { title: "Error", wide: true },
  excerpt: { title: "Begins", wide: true },
  id: { title: "Game" },
};
const USUAL = ["datapoint", "repeat", "label", "decision", "correct", "rounds", "retries", "tokens", "latency_ms", "excerpt"];
const NARROW = ["datapoint", "correct", "tokens"];

// A column of the list; those of the datapoints and of agents have names of their own.
function columnNamed(name) {
  if (name in COLUMNS) return { name, ...COLUMNS[name] };
  const [kind, ...rest] = name.split(".");
  if (kind === "x") return { name, title: rest.join("."), wide: true };
  const words = { tokens: "tokens", retries: "retries", reward: "reward" }[kind] ?? kind;
  return { name, title: `${rest.join(".")} ${words}`, number: true };
}

function verdictMark(row) {
  const [word, kind] =
    row.decision === null ? [row.outcome === "decided" ? "none" : row.outcome.replaceAll("_", " "), "none"]
    : row.correct === null ? ["decided", "none"]
    : row.correct ? ["right", "right"] : ["wrong", "wrong"];
  return el("span", { class: `verdict ${kind}` }, word);
}

class List {
  constructor(run) {
    Object.assign(this, { run, games: run.games, shown: [], selected: -1, top: 0, turn: 0 });
    this.state = this.stateOf(new URLSearchParams());
    this.element = el("div");
    this.build();
  }

  stateOf(words) {
    const all = (name) => (words.get(name) ?? "").split(",").filter(Boolean);
    return {
      q: words.get("q") ?? "", sort: words.get("sort") ?? "", said: words.get("said") === "1", flip: words.get("flip") ?? "",
      filters: all("only").filter((name) => name in FILTERS), where: conditionsOf(words.get("where") ?? ""), columns: all("columns").map(decoded),
    };
  }

  build() {
    this.search = el("input", {
      type: "search", id: "search", placeholder: "Search ids, columns, errors, notes…", "aria-label": "Search games", "aria-keyshortcuts": "/",
      oninput: () => { clearTimeout(this.soon); this.soon = setTimeout(() => this.change({ q: this.search.value, said: false }, false), this.games.length > 5000 ? 150 : 0); },
    });
    this.deep = el("button", { type: "button", onclick: () => (this.searching ? this.cancel() : this.searchSaid()) }, "Search messages");
    this.buttons = new Map(Object.entries(FILTERS).map(([name, [title]]) => [
      name, el("button", { type: "button", "aria-pressed": "false", onclick: () => this.toggle(name) }, title),
    ]));
    this.more = el("div", { class: "filters more" });
    this.count = el("p", { class: "count", role: "status" });
    this.head = el("tr", { "aria-rowindex": "1" });
    this.body = el("tbody");
    this.table = el("table", { class: "games" }, el("thead", {}, this.head), this.body);
    this.view = el("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": "Games" }, this.table);
    this.view.addEventListener("scroll", () => { this.top = this.view.scrollTop; requestAnimationFrame(() => this.draw()); }, { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.view);
    addEventListener("beforeprint", () => this.draw(PRINTED));
    addEventListener("afterprint", () => this.draw());
    replaced(this.element,
      el("div", { class: "tools" }, this.search, this.deep, el("div", { class: "filters", role: "group", "aria-label": "Filters" }, [...this.buttons.values()])),
      this.more, this.count, this.view);
  }

  // Return the names of all columns.
  names() {
    return [...Object.keys(COLUMNS), ...[...this.games.columns.keys()].filter((name) => name.includes("."))];
  }

  columns() {
    const usual = matchMedia("(max-width: 40rem)").matches ? NARROW : USUAL.filter((name) => name !== "repeat" || this.games.repeats);
    return (this.state.columns.length ? this.state.columns : usual).map(columnNamed);
  }

  toggle(name) {
    const on = new Set(this.state.filters);
    if (!on.delete(name)) on.add(name);
    this.change({ filters: [...on] });
  }

  sort(name) {
    const next = this.state.sort === name ? `-${name}` : this.state.sort === `-${name}` ? "" : name;
    this.change({ sort: next });
  }

  // `step` adds an entry to the browser's history.
  change(part, step = true) {
    this.state = { ...this.state, ...part };
    history[step ? "pushState" : "replaceState"](null, "", this.address());
    this.selected = -1;
    this.view.scrollTop = this.top = 0;
    return this.apply();
  }

  address() {
    const { q, sort, filters, where, columns, said, flip } = this.state;
    return address("run", this.run.about.run_id, "games", {
      q, sort, only: filters.join(","), where: conditionsText(where), columns: columns.map(encodeURIComponent).join(","), said: said ? "1" : "", flip,
    });
  }

  take(words) {
    const before = this.address();
    this.state = this.stateOf(words);
    this.search.value = this.state.q;
    if (this.address() === before && this.applied) {
      this.drawn = null;
      this.view.scrollTop = this.top;
      this.draw();
      return;
    }
    if (this.state.said) this.searchSaid();
    else this.apply();
  }

  async searchSaid() {
    if (!this.search.value.trim()) return this.search.focus();
    this.cancel();
    const search = (this.searching = new SaidSearch(this.run, this.search.value, (done, all) => {
      this.deep.textContent = `Stop (${count(done)} of ${count(all)} pieces read)`;
    }));
    this.deep.textContent = "Stop";
    const found = await search.go();
    if (this.searching !== search) return;
    this.searching = null;
    this.deep.textContent = "Search messages";
    this.run.said = found;
    await this.change({ q: this.search.value, said: true }, false);
  }

  cancel() {
    if (this.searching) this.searching.stopped = true;
    this.searching = null;
    this.deep.textContent = "Search messages";
  }

  async apply() {
    const turn = ++this.turn;
    const found = await filtered(this.run, this.state, () => turn === this.turn);
    if (!found) return;
    const sorted = this.state.sort.replace(/^-/, "");
    if (this.games.columns.has(sorted)) found.sort(compareRow(this.games.columns.get(sorted), this.state.sort.startsWith("-")));
    this.shown = found;
    this.applied = true;
    for (const [name, button] of this.buttons) button.setAttribute("aria-pressed", String(this.state.filters.includes(name)));
    this.heads();
    this.drawMore();
    const all = this.games.about.count;
    const said = `${count(found.length)} of ${count(all)} games${this.state.said ? ", messages included" : ""}`;
    this.count.textContent = this.games.length < all ? `${said}; still reading` : said;
    this.table.setAttribute("aria-rowcount", String(found.length + 1));
    this.drawn = null;
    this.draw();
  }

  heads() {
    this.asked = this.columns();
    replaced(this.head, this.asked.map((column, place) => {
      const order = this.state.sort === column.name ? "ascending" : this.state.sort === `-${column.name}` ? "descending" : null;
      const kinds = [kindOf(column), place ? roomOf(column) : null].filter(Boolean).join(" ");
      return el("th", { scope: "col", class: kinds || null, "aria-sort": order }, el("button", { type: "button", onclick: () => this.sort(column.name) }, column.title));
    }));
    this.table.classList.toggle("few", this.asked.length < 5);
    this.above = el("tr", { "aria-hidden": "true" }, el("td", { colspan: this.asked.length }));
    this.below = el("tr", { "aria-hidden": "true" }, el("td", { colspan: this.asked.length }));
  }

  draw(printed = 0) {
    if (!this.above || !this.view.clientHeight) return;
    const first = printed ? 0 : Math.max(0, Math.floor(this.view.scrollTop / ROW) - BEYOND);
    const last = Math.min(this.shown.length, first + (printed || Math.ceil(this.view.clientHeight / ROW) + 2 * BEYOND));
    const key = `${first} ${last} ${this.selected}`;
    if (this.drawn === key) return;
    this.drawn = key;
    this.above.firstChild.style.height = `${first * ROW}px`;
    this.below.firstChild.style.height = `${(this.shown.length - last) * ROW}px`;
    const held = this.body.contains(document.activeElement);
    const rows = this.shown.slice(first, last).map((place, at) => this.row(this.games.at(place), first + at));
    const empty = this.shown.length || this.games.length < this.games.about.count ? null : el("tr", {}, el("td", { colspan: this.asked.length, class: "empty" }, this.games.length ? "No game matches." : "No game has finished."));
    this.body.replaceChildren(this.above, ...rows, ...(empty ? [empty] : []), this.below);
    if (held || this.focuses) rows[this.selected - first]?.querySelector("a").focus({ preventScroll: true });
    this.focuses = false;
  }

  row(row, at) {
    return el("tr", { "aria-rowindex": at + 2, class: at === this.selected ? "selected" : null }, this.asked.map((column, place) => {
      const cell = column.cell ? column.cell(row) : row[column.name] ?? "";
      return el("td", { class: kindOf(column) }, place === 0 ? el("a", { href: address("run", this.run.about.run_id, "game", row.id) }, cell === "" ? row.id : cell) : cell);
    }));
  }

  select(at) {
    if (!this.shown.length) return;
    this.selected = Math.min(this.shown.length - 1, Math.max(0, at));
    const top = this.selected * ROW;
    const room = this.view.clientHeight - 2 * ROW; // the header covers the first rows
    if (top < this.view.scrollTop) this.view.scrollTop = top;
    else if (top > this.view.scrollTop + room) this.view.scrollTop = top - room;
    this.focuses = true;
    this.draw();
  }

  keys() {
    const page = () => Math.max(1, Math.floor(this.view.clientHeight / ROW) - 2);
    const step = (by) => () => this.select(this.selected < 0 && by > 0 ? 0 : this.selected + by);
    keys.set("/", () => this.search.focus()).set("j", step(1)).set("k", step(-1)).set("ArrowDown", step(1)).set("ArrowUp", step(-1));
    keys.set("PageDown", () => step(page())()).set("PageUp", () => step(-page())());
    keys.set("Home", () => this.select(0)).set("End", () => this.select(this.shown.length - 1));
  }

  // Return the next or previous game in the filtered and sorted list.
  beside(id, step) {
    if (this.beside_?.shown !== this.shown) this.beside_ = { shown: this.shown, at: new Map(this.shown.map((place, at) => [place, at])) };
    const at = this.beside_.at.get(this.games.places.get(id));
    const place = at === undefined ? undefined : this.shown[at + step];
    return place === undefined ? undefined : this.games.value("id", place);
  }

  // Draw the conditions on columns, the choice of flips, and the choice of columns.
  drawMore() {
    const open = this.more.contains(document.activeElement);
    if (open && this.more.querySelector("details[open]")) return this.chips();
    const names = this.names();
    const option = (name) => el("option", { value: name }, columnNamed(name).title);
    const column = el("select", { "aria-label": "Column" }, names.map(option));
    const how = el("select", { "aria-label": "How it is compared" }, Object.entries(COMPARED).map(([sign, [word]]) => el("option", { value: sign }, word)));
    const value = el("input", { type: "text", "aria-label": "Value", placeholder: "value" });
    const add = (event) => {
      event.preventDefault();
      if (value.value.trim()) this.change({ where: [...this.state.where, [column.value, how.value, value.value.trim()]] });
    };
    const on = new Set(this.columns().map((one) => one.name));
    const pick = (name, chosen) => this.change({ columns: names.filter((one) => (one === name ? chosen : new Set(this.columns().map((shown) => shown.name)).has(one))) }, false);
    this.chosen = el("span", { class: "chips" });
    replaced(this.more,
      el("details", { class: "where" }, el("summary", {}, "Filter by a column"), el("form", { class: "condition", onsubmit: add }, column, how, value, el("button", { type: "submit" }, "Add"))),
      el("details", { class: "choose" }, el("summary", {}, "Columns"), el("fieldset", {}, el("legend", {}, "Visible columns"), names.map((name) => el("label", {},
        el("input", { type: "checkbox", checked: on.has(name), onchange: (event) => pick(name, event.target.checked) }), columnNamed(name).title)))),
      this.flips(), this.chosen);
    this.chips();
  }

  chips() {
    replaced(this.chosen, this.state.where.map((one, at) => {
      const said = `${columnNamed(one[0]).title} ${COMPARED[one[1]][0]} ${one[2]}`;
      return el("button", { type: "button", class: "chip", "aria-label": `Remove: ${said}`, onclick: () => this.change({ where: this.state.where.filter((_, place) => place !== at) }) }, said, " ✕");
    }));
  }

  flips() {
    const others = comparisonsOf(this.run.about.run_id);
    if (!others.length) return null;
    return el("label", { class: "flip" }, "Flipped against ", el("select", { onchange: (event) => this.change({ flip: event.target.value }) },
      el("option", { value: "" }, "–"), others.map((id) => el("option", { value: id, selected: id === this.state.flip }, id))));
  }
}

// Return the class for a column's width: the letters of its title plus room for an arrow.
function roomOf(column) {
  const letters = column.room ?? column.title.length;
  return column.wide || letters < 7 ? null : letters < 9 ? "room-8" : letters < 13 ? "room-12" : letters < 18 ? "room-17" : "room-24";
}

function kindOf(column) {
  return column.number ? "number" : column.wide ? "wide" : null;
}

route("run/*/games", (place, [id], words) => {
  const run = site.runs.get(id);
  if (!run) return replaced(place, el("p", { class: "empty" }, `There is no run ${id} in this page.`));
  replaced(place, run.list.element);
  run.list.take(words);
  run.list.keys();
  const top = history.state?.top; // the scroll position before the page was reloaded
  if (!top) return run.read();
  history.replaceState(null, "");
  return run.read().then(() => { run.list.view.scrollTop = top; });
});
