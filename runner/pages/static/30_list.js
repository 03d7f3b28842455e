// The list of games: the address contains filters, order and search; only visible rows have elements.

const ROW = 34; // pixels, as in the style sheet
const EXTRA_ROWS = 12; // rows that are drawn above and below the visible ones
const MAX_PRINTED = 1000; // the most rows that are drawn for printing

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
  confidence: { title: "P(accept)", number: true, cell: (row) => (typeof row.confidence === "number" ? formatNumber(row.confidence, 3) : "") },
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
const DEFAULT_COLUMNS = ["datapoint", "repeat", "label", "decision", "correct", "rounds", "retries", "tokens", "latency_ms", "excerpt"];
const NARROW_COLUMNS = ["datapoint", "correct", "tokens"];

// Describe a column; the names of columns of datapoints and agents start with a prefix ("x.level", "tokens.prover").
function columnNamed(name) {
  if (name in COLUMNS) return { name, ...COLUMNS[name] };
  const [kind, ...rest] = name.split(".");
  if (kind === "x") return { name, title: rest.join("."), wide: true };
  const noun = { tokens: "tokens", retries: "retries", reward: "reward" }[kind] ?? kind;
  return { name, title: `${rest.join(".")} ${noun}`, number: true };
}

// Return the word for a game's result, and its style.
function resultOf(row) {
  return row.decision === null ? [row.outcome === "decided" ? "none" : row.outcome.replaceAll("_", " "), "none"]
    : row.correct === null ? ["decided", "none"]
    : row.correct ? ["right", "right"] : ["wrong", "wrong"];
}

function verdictMark(row) {
  const [word, kind] = resultOf(row);
  return el("span", { class: `verdict ${kind}` }, word);
}

class List {
  constructor(run) {
    this.run = run;
    this.games = run.games;
    this.shown = [];
    this.selected = -1;
    this.top = 0;
    this.turn = 0;
    this.state = this.stateOf(new URLSearchParams());
    this.element = el("div");
    this.build();
  }

  stateOf(query) {
    const listOf = (name) => (query.get(name) ?? "").split(",").filter(Boolean);
    return {
      q: query.get("q") ?? "", sort: query.get("sort") ?? "", said: query.get("said") === "1", flip: query.get("flip") ?? "",
      filters: listOf("only").filter((name) => name in FILTERS), where: conditionsOf(query.get("where") ?? ""), columns: listOf("columns").map(decode),
    };
  }

  build() {
    this.search = el("input", {
      type: "search", id: "search", placeholder: "Search ids, columns, errors, notes…", "aria-label": "Search games", "aria-keyshortcuts": "/",
      oninput: () => { clearTimeout(this.searchTimer); this.searchTimer = setTimeout(() => this.change({ q: this.search.value, said: false }, false), this.games.length > 5000 ? 150 : 0); },
    });
    this.messageButton = el("button", { type: "button", onclick: () => (this.searching ? this.cancel() : this.searchMessages()) }, "Search messages");
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
    addEventListener("beforeprint", () => this.draw(MAX_PRINTED));
    addEventListener("afterprint", () => this.draw());
    replaceContent(this.element,
      el("div", { class: "tools" }, this.search, this.messageButton, el("div", { class: "filters", role: "group", "aria-label": "Filters" }, [...this.buttons.values()])),
      this.more, this.count, this.view);
  }

  // Return the names of all columns.
  names() {
    return [...Object.keys(COLUMNS), ...[...this.games.columns.keys()].filter((name) => name.includes("."))];
  }

  columns() {
    const usual = matchMedia("(max-width: 40rem)").matches ? NARROW_COLUMNS : DEFAULT_COLUMNS.filter((name) => name !== "repeat" || this.games.repeats);
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

  // Apply changed choices; `addsEntry` adds an entry to the browser's history.
  change(part, addsEntry = true) {
    this.state = { ...this.state, ...part };
    history[addsEntry ? "pushState" : "replaceState"](null, "", this.address());
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

  take(query) {
    const before = this.address();
    this.state = this.stateOf(query);
    this.search.value = this.state.q;
    if (this.address() === before && this.applied) {
      this.drawn = null;
      this.view.scrollTop = this.top;
      this.draw();
      return;
    }
    if (this.state.said) this.searchMessages();
    else this.apply();
  }

  async searchMessages() {
    if (!this.search.value.trim()) return this.search.focus();
    this.cancel();
    const search = (this.searching = new MessageSearch(this.run, this.search.value, (done, total) => {
      this.messageButton.textContent = `Stop (${count(done)} of ${count(total)} pieces read)`;
    }));
    this.messageButton.textContent = "Stop";
    const matches = await search.run().catch(showProblem);
    if (this.searching !== search) return;
    if (!matches) return this.cancel();
    this.searching = null;
    this.messageButton.textContent = "Search messages";
    this.run.said = matches;
    await this.change({ q: this.search.value, said: true }, false);
  }

  cancel() {
    if (this.searching) this.searching.stopped = true;
    this.searching = null;
    this.messageButton.textContent = "Search messages";
  }

  async apply() {
    const turn = ++this.turn;
    const places = await matchingPlaces(this.run, this.state, () => turn === this.turn);
    if (!places) return;
    const sorted = this.state.sort.replace(/^-/, "");
    if (this.games.columns.has(sorted)) places.sort(compareBy(this.games.columns.get(sorted), this.state.sort.startsWith("-")));
    this.shown = places;
    this.applied = true;
    for (const [name, button] of this.buttons) button.setAttribute("aria-pressed", String(this.state.filters.includes(name)));
    this.drawHead();
    this.drawMore();
    const total = this.games.about.count;
    const text = `${count(places.length)} of ${count(total)} games${this.state.said ? ", messages included" : ""}`;
    this.count.textContent = this.games.length < total ? `${text}; still reading` : text;
    this.table.setAttribute("aria-rowcount", String(places.length + 1));
    this.drawn = null;
    this.draw();
  }

  drawHead() {
    this.visibleColumns = this.columns();
    replaceContent(this.head, this.visibleColumns.map((column, index) => {
      const order = this.state.sort === column.name ? "ascending" : this.state.sort === `-${column.name}` ? "descending" : null;
      const classes = [kindOf(column), index ? roomOf(column) : null].filter(Boolean).join(" ");
      return el("th", { scope: "col", class: classes || null, "aria-sort": order }, el("button", { type: "button", onclick: () => this.sort(column.name) }, column.title));
    }));
    this.table.classList.toggle("few", this.visibleColumns.length < 5);
    this.above = el("tr", { "aria-hidden": "true" }, el("td", { colspan: this.visibleColumns.length }));
    this.below = el("tr", { "aria-hidden": "true" }, el("td", { colspan: this.visibleColumns.length }));
  }

  draw(printed = 0) {
    if (!this.above || !this.view.clientHeight) return;
    const first = printed ? 0 : Math.max(0, Math.floor(this.view.scrollTop / ROW) - EXTRA_ROWS);
    const last = Math.min(this.shown.length, first + (printed || Math.ceil(this.view.clientHeight / ROW) + 2 * EXTRA_ROWS));
    const key = `${first} ${last} ${this.selected}`;
    if (this.drawn === key) return;
    this.drawn = key;
    this.above.firstChild.style.height = `${first * ROW}px`;
    this.below.firstChild.style.height = `${(this.shown.length - last) * ROW}px`;
    const hadFocus = this.body.contains(document.activeElement);
    const rows = this.shown.slice(first, last).map((place, index) => this.row(this.games.at(place), first + index));
    const empty = this.shown.length || this.games.length < this.games.about.count ? null : el("tr", {}, el("td", { colspan: this.visibleColumns.length, class: "empty" }, this.games.length ? "No game matches." : "No game has finished."));
    this.body.replaceChildren(this.above, ...rows, ...(empty ? [empty] : []), this.below);
    if (hadFocus || this.focuses) rows[this.selected - first]?.querySelector("a").focus({ preventScroll: true });
    this.focuses = false;
  }

  row(row, index) {
    return el("tr", { "aria-rowindex": index + 2, class: index === this.selected ? "selected" : null }, this.visibleColumns.map((column, place) => {
      const cell = column.cell ? column.cell(row) : row[column.name] ?? "";
      return el("td", { class: kindOf(column) }, place === 0 ? el("a", { href: address("run", this.run.about.run_id, "game", row.id) }, cell === "" ? row.id : cell) : cell);
    }));
  }

  select(index) {
    if (!this.shown.length) return;
    this.selected = Math.min(this.shown.length - 1, Math.max(0, index));
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
  neighbor(id, step) {
    if (this.positions?.shown !== this.shown) this.positions = { shown: this.shown, indexes: new Map(this.shown.map((place, index) => [place, index])) };
    const index = this.positions.indexes.get(this.games.places.get(id));
    const place = index === undefined ? undefined : this.shown[index + step];
    return place === undefined ? undefined : this.games.value("id", place);
  }

  // Draw the conditions on columns, the choice of columns, and the choice of a run for flipped verdicts.
  drawMore() {
    const isInUse = this.more.contains(document.activeElement);
    if (isInUse && this.more.querySelector("details[open]")) return this.drawChips();
    const names = this.names();
    const option = (name) => el("option", { value: name }, columnNamed(name).title);
    const column = el("select", { "aria-label": "Column" }, names.map(option));
    const how = el("select", { "aria-label": "How it is compared" }, Object.entries(COMPARISONS).map(([sign, [word]]) => el("option", { value: sign }, word)));
    const value = el("input", { type: "text", "aria-label": "Value", placeholder: "value" });
    const add = (event) => {
      event.preventDefault();
      if (value.value.trim()) this.change({ where: [...this.state.where, [column.value, how.value, value.value.trim()]] });
    };
    const visible = new Set(this.columns().map((column) => column.name));
    const pick = (name, chosen) => this.change({ columns: names.filter((other) => (other === name ? chosen : new Set(this.columns().map((column) => column.name)).has(other))) }, false);
    this.chosen = el("span", { class: "chips" });
    replaceContent(this.more,
      el("details", { class: "where" }, el("summary", {}, "Filter by a column"), el("form", { class: "condition", onsubmit: add }, column, how, value, el("button", { type: "submit" }, "Add"))),
      el("details", { class: "choose" }, el("summary", {}, "Columns"), el("fieldset", {}, el("legend", {}, "Visible columns"), names.map((name) => el("label", {},
        el("input", { type: "checkbox", checked: visible.has(name), onchange: (event) => pick(name, event.target.checked) }), columnNamed(name).title)))),
      this.flipChoice(), this.chosen);
    this.drawChips();
  }

  drawChips() {
    replaceContent(this.chosen, this.state.where.map((condition, index) => {
      const text = `${columnNamed(condition[0]).title} ${COMPARISONS[condition[1]][0]} ${condition[2]}`;
      return el("button", { type: "button", class: "chip", "aria-label": `Remove: ${text}`, onclick: () => this.change({ where: this.state.where.filter((_, other) => other !== index) }) }, text, " ✕");
    }));
  }

  flipChoice() {
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

route("run/*/games", (container, [id], query) => {
  const run = site.runs.get(id);
  if (!run) return replaceContent(container, el("p", { class: "empty" }, `There is no run ${id} in this page.`));
  replaceContent(container, run.list.element);
  run.list.take(query);
  run.list.keys();
  const top = history.state?.top; // the scroll position before the page was reloaded
  if (!top) return run.read();
  history.replaceState(null, "");
  return run.read().then(() => { run.list.view.scrollTop = top; });
});
