// The list of games: filters, order and search are in the address, and only the rows in sight are elements.

const ROW = 34; // pixels, as in the style sheet
const BEYOND = 12; // rows above and below those in sight

const FILTERS = {
  wrong: ["Wrong", (row) => row.correct === false && row.decision !== null],
  undecided: ["Undecided", (row) => row.decision === null],
  right: ["Right", (row) => row.correct === true],
  retried: ["Asked again", (row) => row.retries > 0],
  failed: ["Failed calls", (row) => row.failed_calls > 0],
  noted: ["With notes", (row, run) => run.notes.of(row.id).length > 0],
};

const WORDS = { 0: "reject", 1: "accept" };

const COLUMNS = [
  { name: "datapoint", title: "Datapoint", cell: (row) => row.datapoint },
  { name: "repeat", title: "Repeat", number: true, cell: (row) => row.repeat },
  { name: "label", title: "Label", cell: (row) => WORDS[row.label] },
  { name: "decision", title: "Verdict", cell: (row) => WORDS[row.decision] ?? "none" },
  { name: "correct", title: "", cell: verdictMark },
  { name: "rounds", title: "Rounds", number: true, cell: (row) => row.rounds },
  { name: "retries", title: "Retries", number: true, cell: (row) => row.retries || "" },
  { name: "completion_tokens", title: "Tokens", number: true, cell: (row) => (row.prompt_tokens + row.completion_tokens).toLocaleString("en") },
  { name: "latency_ms", title: "Seconds", number: true, cell: (row) => (row.latency_ms / 1000).toFixed(1) },
  { name: "excerpt", title: "Begins", wide: true, cell: (row) => row.excerpt },
];

function verdictMark(row) {
  const [word, kind] =
    row.decision === null ? [row.outcome === "decided" ? "none" : row.outcome.replaceAll("_", " "), "none"]
    : row.correct ? ["right", "right"] : ["wrong", "wrong"];
  return el("span", { class: `verdict ${kind}` }, word);
}

class List {
  constructor(run) {
    this.run = run;
    this.games = run.games;
    this.state = { sort: "", q: "", filters: [] };
    this.shown = [];
    this.element = el("div");
    this.build();
  }

  build() {
    this.search = el("input", {
      type: "search", id: "search", placeholder: "Search ids, columns, errors, notes…", "aria-label": "Search games",
      oninput: () => this.change({ q: this.search.value }),
    });
    this.buttons = new Map(Object.entries(FILTERS).map(([name, [title]]) => [
      name, el("button", { type: "button", "aria-pressed": "false", onclick: () => this.toggle(name) }, title),
    ]));
    this.count = el("p", { class: "count", role: "status" });
    this.heads = COLUMNS.map((column) => el("th", {
      scope: "col", class: column.number ? "number" : column.wide ? "wide" : null,
    }, column.title ? el("button", { type: "button", onclick: () => this.sort(column.name) }, column.title) : "Result"));
    this.above = el("tr", { "aria-hidden": "true" }, el("td", { colspan: COLUMNS.length }));
    this.below = el("tr", { "aria-hidden": "true" }, el("td", { colspan: COLUMNS.length }));
    this.body = el("tbody");
    this.table = el("table", { class: "games" }, el("thead", {}, el("tr", {}, this.heads)), this.body);
    this.view = el("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": "Games" }, this.table);
    this.view.addEventListener("scroll", () => requestAnimationFrame(() => this.draw()), { passive: true });
    new ResizeObserver(() => this.draw()).observe(this.view);
    replaced(this.element,
      el("div", { class: "tools" }, this.search, el("div", { class: "filters", role: "group", "aria-label": "Filters" }, [...this.buttons.values()])),
      this.count, this.view);
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

  change(part) {
    this.state = { ...this.state, ...part };
    history.replaceState(null, "", this.address());
    this.apply();
  }

  address() {
    return address("run", this.run.about.run_id, "games", { q: this.state.q, sort: this.state.sort, only: this.state.filters.join(",") });
  }

  take(words) {
    this.state = {
      q: words.get("q") ?? "",
      sort: words.get("sort") ?? "",
      filters: (words.get("only") ?? "").split(",").filter((name) => name in FILTERS),
    };
    this.search.value = this.state.q;
    this.apply();
  }

  apply() {
    const tests = this.state.filters.map((name) => FILTERS[name][1]);
    const wanted = this.state.q.toLowerCase().split(/\s+/).filter(Boolean);
    this.shown = this.games.rows.filter(
      (row) => (!tests.length || tests.some((test) => test(row, this.run))) && wanted.every((word) => haystack(row).includes(word) || this.run.notes.say(row.id, word)),
    );
    if (this.state.sort) this.shown.sort(by(this.state.sort));
    for (const [name, button] of this.buttons) button.setAttribute("aria-pressed", String(this.state.filters.includes(name)));
    COLUMNS.forEach((column, at) => {
      const order = this.state.sort === column.name ? "ascending" : this.state.sort === `-${column.name}` ? "descending" : null;
      if (order) this.heads[at].setAttribute("aria-sort", order);
      else this.heads[at].removeAttribute("aria-sort");
    });
    const all = this.games.about.count;
    const said = `${this.shown.length.toLocaleString("en")} of ${all.toLocaleString("en")} games`;
    this.count.textContent = this.games.rows.length < all ? `${said}; still reading` : said;
    this.table.setAttribute("aria-rowcount", String(this.shown.length + 1));
    this.drawn = null;
    this.draw();
  }

  draw() {
    const first = Math.max(0, Math.floor(this.view.scrollTop / ROW) - BEYOND);
    const last = Math.min(this.shown.length, first + Math.ceil(this.view.clientHeight / ROW) + 2 * BEYOND);
    const key = `${first} ${last}`;
    if (this.drawn === key) return;
    this.drawn = key;
    this.above.firstChild.style.height = `${first * ROW}px`;
    this.below.firstChild.style.height = `${(this.shown.length - last) * ROW}px`;
    const rows = this.shown.slice(first, last).map((row, at) => el("tr", { "aria-rowindex": first + at + 2 },
      COLUMNS.map((column, place) => el("td", { class: column.number ? "number" : column.wide ? "wide" : null },
        place === 0 ? el("a", { href: address("run", this.run.about.run_id, "game", row.id) }, column.cell(row)) : column.cell(row)))));
    this.body.replaceChildren(this.above, ...rows, this.below);
  }

  // The game after or before one, in the order and with the filters of the list.
  beside(id, step) {
    const at = this.shown.findIndex((row) => row.id === id);
    return this.shown[at + step]?.id;
  }
}

const haystacks = new WeakMap();

function haystack(row) {
  let found = haystacks.get(row);
  if (found === undefined) {
    found = Object.values(row).filter((value) => typeof value === "string").join("\n").toLowerCase();
    haystacks.set(row, found);
  }
  return found;
}

function by(sort) {
  const down = sort.startsWith("-");
  const name = down ? sort.slice(1) : sort;
  return (one, other) => (down ? -1 : 1) * compared(one[name], other[name]) || one.place - other.place;
}

function compared(one, other) {
  if (one === other) return 0;
  if (one === null || one === undefined) return 1;
  if (other === null || other === undefined) return -1;
  return one < other ? -1 : 1;
}

route("run/*/games", (place, [id], words) => {
  const run = site.runs.get(id);
  if (!run) return replaced(place, el("p", { class: "empty" }, `There is no run ${id} in this page.`));
  replaced(place, run.list.element);
  run.list.take(words);
  keys.set("/", () => run.list.search.focus());
  return run.read();
});
