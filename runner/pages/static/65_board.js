// A task's list on a board. Sorting, filters and the chosen columns are in the address.

const PAGE_ROWS = 100;
const SVG = "http://www.w3.org/2000/svg";

const decimal = (value) => (value === null ? "–" : formatNumber(value, 3));
const whole = (value) => (value === null ? "–" : value.toLocaleString("en"));
const rankOf = (row) => (row.rank === null ? "–" : row.rank === row.rank_last ? String(row.rank) : `${row.rank}–${row.rank_last}`);
const intervalOf = (row) => (row.ci_low === null && row.ci_high === null ? "" : [row.ci_low, row.ci_high].map((end) => (end === null ? "not estimable" : decimal(end))).join("–"));

// Columns: the title, the fields for sorting and for files, and the cell. Columns with `first` are shown by
// default, those with `first: "served"` only on server pages, and those with `ifPresent` only if a row has a value.
const BOARD_COLUMNS = {
  rank: { title: "Rank", fields: ["rank", "rank_last"], number: true, first: true, cell: rankOf },
  run: { title: "Run", fields: ["run"], first: true, head: true, cell: (row, list) => list.runCell(row) },
  accuracy: { title: "Accuracy, 95 %", fields: ["accuracy", "ci_low", "ci_high"], number: true, first: true, cell: (row) => [decimal(row.accuracy), el("span", { class: "soft below" }, intervalOf(row))] },
  bar: { title: "", fields: [], first: true, cell: (row, list) => accuracyBar(row, list.about.domain) },
  n: { title: "n", fields: ["n", "clusters"], number: true, first: true, cell: (row, list) => [whole(row.n), row.lost > 0 && !list.state.cols.includes("outcomes") && el("span", { class: "soft below" }, `${whole(row.lost)} lost`), Boolean(row.clusters) && el("span", { class: "soft below" }, `${whole(row.clusters)} clusters`), row.per_datapoint > 1 && el("span", { class: "soft below" }, `${whole(row.per_datapoint)} games per datapoint`)] },
  tier: { title: "Checked", fields: ["tier_words", "tier"], served: true, first: true, kind: "short", cell: (row) => row.tier_words },
  protocol: { title: "Protocol", fields: ["protocol"], first: true, kind: "short", cell: (row) => row.protocol },
  models: { title: "Models", fields: ["models"], first: true, kind: "models", cell: (row) => row.models ?? "–" },
  outcomes: { title: "Outcomes", fields: ["outcomes"], first: "served", kind: "models", cell: (row) => outcomesOf(row) },
  lost: { title: "Lost games", fields: ["lost"], number: true, cell: (row) => whole(row.lost) },
  undecided: { title: "Undecided games", fields: ["undecided"], number: true, cell: (row) => whole(row.undecided) },
  cost: { title: "Cost", fields: ["cost_usd"], number: true, first: true, cell: (row) => dollarsOf(row.cost_usd) },
  trained: { title: "Trained on", fields: ["trained_on"], published: true, first: "served", ifPresent: true, kind: "models", cell: (row) => row.trained_on ?? "–" },
  finished: { title: "Finished", fields: ["finished_at"], first: true, kind: "time", cell: (row) => (row.finished_at ?? "–").slice(0, 10) },
  tries: { title: "Owner's runs", fields: ["owner_runs"], number: true, served: true, first: true, cell: (row) => whole(row.owner_runs) },
  started: { title: "Started (UTC)", fields: ["started_at"], kind: "time", cell: (row) => row.started_at ?? "–" },
  name: { title: "Spec", fields: ["name"], cell: (row) => row.name ?? "–" },
  point: { title: "Point of its sweep", fields: ["point"], kind: "models", cell: (row) => row.point ?? "" },
  seed: { title: "Seed", fields: ["seed"], number: true, cell: (row) => row.seed ?? "–" },
  repeats: { title: "Plays of each", fields: ["per_datapoint"], number: true, cell: (row) => whole(row.per_datapoint) },
  stderr: { title: "Standard error", fields: ["stderr"], number: true, cell: (row) => decimal(row.stderr) },
  owner: { title: "Owner", fields: ["owner"], published: true, cell: (row) => row.owner },
  numbers: { title: "Numbers", fields: ["numbers"], published: true, cell: (row) => row.numbers },
  signed: { title: "Signed", fields: ["signed"], published: true, cell: (row) => (row.signed ? "signed" : "no") },
  version: { title: "nip-run", fields: ["version"], cell: (row) => row.version ?? "–" },
  hashes: { title: "Hashes", fields: ["spec_sha256", "dataset_sha256", "game_sha256", "release_sha256"], kind: "models", cell: (row) => el("code", {}, (row.spec_sha256 ?? "").slice(0, 12)) },
  marks: { title: "Marks", fields: ["marks"], first: true, kind: "long", cell: (row) => row.kinds.map((kind, at) => el("span", { class: "mark", title: row.marks[at] }, kind === "other" ? row.marks[at] : kind)) },
};

function dollarsOf(cost) {
  if (cost === null) return "–";
  if (cost >= 1 || cost === 0) return `$${cost.toLocaleString("en", { minimumFractionDigits: 2, maximumFractionDigits: 2 })}`;
  return cost >= 0.0001 ? `$${cost.toPrecision(2)}` : "<$0.0001";
}

function outcomesOf(row) {
  let counts;
  try {
    counts = Object.entries(JSON.parse(row.outcomes ?? "{}"));
  } catch {
    return row.outcomes; // a published row may have an invalid text
  }
  return counts.filter(([, count]) => count).map(([name, count]) => `${name.replaceAll("_", " ")} ${count}`).join(", ") || "–";
}

function svgElement(tag, attributes, ...children) {
  const element = document.createElementNS(SVG, tag);
  for (const [name, value] of Object.entries(attributes)) element.setAttribute(name, String(value));
  element.append(...children);
  return element;
}

function accuracyBar(row, domain) {
  if (!domain || row.accuracy === null) return null;
  const [low, high] = domain;
  const x = (share) => (4 + ((Math.min(Math.max(share, low), high) - low) / (high - low)) * 112).toFixed(1);
  const marks = [svgElement("line", { class: "axis", x1: 4, x2: 116, y1: 8, y2: 8 })];
  if (low < 0.5 && 0.5 < high) marks.push(svgElement("line", { class: "half", x1: x(0.5), x2: x(0.5), y1: 1, y2: 15 }));
  if (row.ci_low !== null || row.ci_high !== null) marks.push(svgElement("line", { class: "interval", x1: x(row.ci_low ?? low), x2: x(row.ci_high ?? high), y1: 8, y2: 8 }));
  marks.push(svgElement("circle", { cx: x(row.accuracy), cy: 8, r: 3.5 }));
  return svgElement("svg", { class: "interval-bar", width: 120, height: 16, viewBox: "0 0 120 16", "aria-hidden": "true" }, ...marks);
}

// One list of a board. Its rows are loaded when it is first shown.
class BoardList {
  constructor(about, board) {
    this.about = about; // {slug, name, benchmark, task, count, pieces, domain}
    this.board = board; // {where, published, meanings, linked}
    this.linked = new Set(board.linked);
    this.columns = { __proto__: null, ...Object.fromEntries(Object.entries(BOARD_COLUMNS).filter(([name, column]) => (board.published || !column.published) && (board.served || !column.served) && (name !== "bar" || about.domain))) };
    this.open = new Set(); // runs whose details are shown
    this.element = el("div");
    this.defaultColumns = null;
    this.reading = null;
  }

  async read() {
    this.reading ??= (async () => {
      this.rows = [];
      for (let number = 0; number < this.about.pieces; number++) {
        const piece = await loadPiece(`${this.about.slug}-rows-${number}`);
        const names = Object.keys(piece.columns);
        for (let index = 0; index < piece.count; index++) {
          const row = { place: this.rows.length };
          for (const name of names) row[name] = piece.columns[name][index];
          this.rows.push(row);
        }
      }
      this.build();
    })();
    return this.reading;
  }

  build() {
    this.search = el("input", { type: "search", placeholder: "Search runs, models, marks…", "aria-label": "Search rows", oninput: () => this.change({ q: this.search.value, page: 0 }) });
    const models = new Set(this.rows.flatMap(modelsOf));
    this.selects = {
      protocol: this.select("protocol", "All protocols", [...new Set(this.rows.map((row) => row.protocol))].sort()),
      model: this.select("model", "All models", [...models].sort()),
      mark: this.select("mark", "All rows", ["ranked", "without a rank", ...Object.keys(this.board.meanings).filter((kind) => this.rows.some((row) => row.kinds.includes(kind)))]),
    };
    this.boxes = Object.entries(this.columns).filter(([name]) => name !== "run").map(([name, column]) => el("label", {},
      el("input", { type: "checkbox", value: name, onchange: () => this.choose() }), column.title || "Interval as a bar"));
    this.chosen = el("details", { class: "choose-columns" }, el("summary", {}, "Columns"), el("div", { class: "boxes", role: "group", "aria-label": "Columns" }, this.boxes));
    this.count = el("p", { class: "count", role: "status" });
    this.head = el("tr");
    this.body = el("tbody");
    this.table = el("table", { class: "board" }, el("thead", {}, this.head), this.body);
    this.pages = el("nav", { class: "steps", "aria-label": "Parts of the list" });
    replaceContent(this.element,
      el("div", { class: "tools" }, this.search, Object.values(this.selects)),
      el("div", { class: "tools" }, this.chosen,
        el("button", { type: "button", onclick: () => this.save("csv") }, "Save these rows as CSV"),
        el("button", { type: "button", onclick: () => this.save("json") }, "Save these rows as JSON"),
        el("button", { type: "button", onclick: () => this.change({ q: "", sort: "", protocol: "", model: "", mark: "", cols: this.first, page: 0 }) }, "Reset")),
      this.count,
      el("div", { class: "scrolls", tabindex: "0", role: "region", "aria-label": `Runs of ${this.about.benchmark}` }, this.table), this.pages);
  }

  select(name, placeholder, values) {
    return el("select", { "aria-label": { protocol: "Protocol", model: "Model", mark: "Rank or mark" }[name], onchange: (event) => this.change({ [name]: event.target.value, page: 0 }) },
      el("option", { value: "" }, placeholder), values.map((value) => el("option", { value }, value)));
  }

  get first() {
    const isPresent = ({ ifPresent, fields }) => !ifPresent || this.rows.some((row) => (row[fields[0]] ?? null) !== null);
    return (this.defaultColumns ??= Object.entries(this.columns).filter(([, column]) => (column.first === true || (column.first && this.board.served)) && isPresent(column)).map(([name]) => name));
  }

  choose() {
    const checked = new Set(this.boxes.map((label) => label.firstChild).filter((box) => box.checked).map((box) => box.value));
    this.change({ cols: Object.keys(this.columns).filter((name) => name === "run" || checked.has(name)) });
  }

  change(part) {
    this.state = { ...this.state, ...part };
    history.replaceState(null, "", this.address());
    this.apply();
  }

  address() {
    const { q, sort, protocol, model, mark, page, cols } = this.state;
    const own = cols.join() === this.first.join() ? "" : cols.join();
    return address("board", this.about.name, { q, sort, protocol, model, mark, cols: own, page: page ? page + 1 : "" });
  }

  take(query) {
    const cols = (query.get("cols") ?? "").split(",").filter((name) => name in this.columns);
    const text = (name) => query.get(name) ?? "";
    const sort = text("sort");
    this.state = {
      q: text("q"),
      protocol: text("protocol"),
      model: text("model"),
      mark: text("mark"),
      sort: this.columns[sort.replace(/^-/, "")]?.fields.length ? sort : "",
      cols: cols.length ? Object.keys(this.columns).filter((name) => name === "run" || cols.includes(name)) : this.first,
      page: Math.max(0, (parseInt(query.get("page"), 10) || 1) - 1),
    };
    this.apply();
  }

  apply() {
    const { q, sort, protocol, model, mark } = this.state;
    const words = q.toLowerCase().split(/\s+/).filter(Boolean);
    this.shown = this.rows.filter((row) =>
      (!protocol || row.protocol === protocol) && (!model || modelsOf(row).includes(model)) && (!mark || isMarked(row, mark))
      && words.every((word) => boardText(row).includes(word)));
    if (sort) this.shown.sort(this.order(sort));
    this.search.value === q || (this.search.value = q);
    for (const [name, select] of Object.entries(this.selects)) select.value = this.state[name];
    for (const label of this.boxes) label.firstChild.checked = this.state.cols.includes(label.firstChild.value);
    // A list of a results folder has runs of other tasks below its own.
    const ofTask = (rows) => rows.filter((row) => row.task === this.about.task).length;
    const all = ofTask(this.rows).toLocaleString("en"), others = this.rows.length - ofTask(this.rows);
    const runs = this.shown.length === this.rows.length ? `${all} runs` : `${ofTask(this.shown).toLocaleString("en")} of ${all} runs`;
    this.count.textContent = others ? `${runs}, and ${others.toLocaleString("en")} of other tasks` : runs;
    this.draw();
    for (const link of document.querySelectorAll("a[data-permanent]")) link.href = this.address();
  }

  // Compare rows by a column's first field; rows without a value come last in both directions.
  order(sort) {
    const descending = sort.startsWith("-");
    const name = this.columns[sort.replace(/^-/, "")].fields[0];
    return (row, other) => {
      const [a, b] = [row[name] ?? null, other[name] ?? null];
      if (a === null || b === null) return Number(a === null) - Number(b === null) || row.place - other.place;
      return (descending ? -1 : 1) * inOrder(Array.isArray(a) ? a.join() : a, Array.isArray(b) ? b.join() : b) || row.place - other.place;
    };
  }

  draw() {
    const { cols, sort } = this.state;
    const last = Math.max(0, Math.ceil(this.shown.length / PAGE_ROWS) - 1);
    const page = Math.min(this.state.page, last);
    replaceContent(this.head, cols.map((name) => {
      const column = this.columns[name];
      const order = sort === name ? "ascending" : sort === `-${name}` ? "descending" : null;
      const title = column.fields.length ? el("button", { type: "button", "data-column": name, onclick: () => this.sort(name) }, column.title) : this.scale();
      return el("th", { scope: "col", class: column.number ? "number" : null, "aria-sort": order }, title);
    }));
    const rows = this.shown.slice(page * PAGE_ROWS, (page + 1) * PAGE_ROWS);
    replaceContent(this.body, rows.length ? rows.map((row) => this.line(row)) : el("tr", {}, el("td", { colspan: cols.length }, "No run matches.")));
    const step = (to, text) => el("button", { type: "button", disabled: to < 0 || to > last || to === page, onclick: () => { this.change({ page: to }); this.table.scrollIntoView(); } }, text);
    replaceContent(this.pages, last > 0 && [step(page - 1, "Previous rows"), el("span", { class: "soft" }, ` ${(page * PAGE_ROWS + 1).toLocaleString("en")} to ${(page * PAGE_ROWS + rows.length).toLocaleString("en")} of ${this.shown.length.toLocaleString("en")} `), step(page + 1, "Next rows")]);
  }

  sort(name) {
    const next = this.state.sort === name ? `-${name}` : this.state.sort === `-${name}` ? "" : name;
    this.change({ sort: next, page: 0 });
    this.head.querySelector(`[data-column="${name}"]`).focus();
  }

  scale() {
    const { domain } = this.about;
    return el("span", { class: "scale" }, domain.map((end) => el("span", {}, end.toFixed(1))));
  }

  line(row) {
    const { cols } = this.state;
    const cells = cols.map((name) => {
      const column = this.columns[name];
      const kind = [column.number ? "number" : column.kind ?? "", column.head ? "name" : ""].join(" ").trim() || null;
      return el(column.head ? "th" : "td", { class: kind, scope: column.head ? "row" : null }, column.cell(row, this));
    });
    const lines = [el("tr", {}, cells)];
    if (this.open.has(row.run)) lines.push(el("tr", { class: "more" }, el("td", { colspan: cols.length }, this.details(row))));
    return lines;
  }

  runCell(row) {
    const isOpen = this.open.has(row.run);
    const href = this.board.served ? row.href : this.linked.has(row.run_id) ? address("run", row.run_id) : null;
    const name = href ? el("a", { href }, row.run) : row.run;
    const more = el("button", { type: "button", class: "fold", "aria-expanded": String(isOpen), "aria-label": `Details of ${row.run}`, onclick: () => this.unfold(row) }, isOpen ? "−" : "+");
    return [more, name, !this.state.cols.includes("point") && row.short_point ? el("span", { class: "soft below" }, row.short_point) : null];
  }

  unfold(row) {
    if (!this.open.delete(row.run)) this.open.add(row.run);
    this.draw();
    [...this.body.querySelectorAll("button.fold")].find((button) => button.getAttribute("aria-label") === plain(`Details of ${row.run}`))?.focus();
  }

  details(row) {
    const facts = ["name", "point", "seed", "status", "started_at", "finished_at", "version", "owner", "tier", "reproduced_by", "owner_runs", "numbers", "trained_on", "task", "spec_sha256", "dataset_sha256", "game_sha256", "release_sha256"];
    const marks = row.marks.map((text, index) => [el("dt", {}, row.kinds[index]), el("dd", {}, `${text}. ${this.board.meanings[row.kinds[index]]}`)]);
    const leader = this.rows[0];
    const other = leader.run === row.run ? this.rows[1] : leader;
    const comparable = other && this.linked.has(row.run_id) && this.linked.has(other.run_id);
    return [
      el("dl", {}, marks, el("dt", {}, "Outcomes"), el("dd", {}, outcomesOf(row)),
        facts.filter((name) => (row[name] ?? null) !== null).map((name) => [el("dt", {}, name), el("dd", {}, String(row[name]))])),
      comparable && el("p", {}, el("a", { href: address("compare", other.run_id, row.run_id) }, `Compare with ${other.run}, game by game`)),
      this.commands(row, other).map((command) => el("pre", { tabindex: "0" }, el("code", {}, command))),
    ];
  }

  commands(row, other) {
    if (row.release) return ["get", "reproduce", "verify"].map((name) => `nip-run ${name} ${row.release}${this.board.place}`);
    return [`nip-run show ${row.run}${this.board.place}`, ...(other ? [`nip-run compare ${other.run} ${row.run}${this.board.place}`] : [])];
  }

  save(kind) {
    const fields = this.state.cols.flatMap((name) => this.columns[name].fields);
    const content = kind === "csv" ? asCsv(fields, this.shown) : asJson(fields, this.shown);
    const type = kind === "csv" ? "text/csv;charset=utf-8" : "application/json";
    const link = el("a", { href: URL.createObjectURL(new Blob([content], { type })), download: `board-${this.about.name}.${kind}` });
    link.click();
    setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
    announce(`${this.shown.length} rows saved as ${link.download}`);
  }
}

function inOrder(a, b) {
  return a === b ? 0 : a < b ? -1 : 1;
}

function asJson(fields, rows) {
  return `${JSON.stringify(rows.map((row) => Object.fromEntries(fields.map((name) => [name, row[name] ?? null]))), null, 1)}\n`;
}

function asCsv(fields, rows) {
  const lines = [fields, ...rows.map((row) => fields.map((name) => row[name] ?? ""))];
  return lines.map((line) => `${line.map(csvCell).join(",")}\r\n`).join("");
}

// Format a cell; a text that a spreadsheet would run as a formula gets an apostrophe in front.
function csvCell(value) {
  if (typeof value === "number" || typeof value === "boolean") return String(value);
  let text = Array.isArray(value) ? value.join("; ") : String(value);
  if (/^[\s\u0000]*[=+\-@\t\r]/.test(text)) text = `'${text}`;
  return /[",\r\n]/.test(text) || text !== text.trim() ? `"${text.replaceAll('"', '""')}"` : text;
}

function modelsOf(row) {
  return (row.models ?? "").split(", ").map((part) => part.slice(part.indexOf("=") + 1)).filter(Boolean);
}

function isMarked(row, mark) {
  return mark === "ranked" ? row.rank !== null : mark === "without a rank" ? row.rank === null : row.kinds.includes(mark);
}

const boardTexts = new WeakMap();

function boardText(row) {
  let text = boardTexts.get(row);
  if (text === undefined) {
    text = Object.values(row).flat().filter((value) => typeof value === "string").join("\n").toLowerCase();
    boardTexts.set(row, text);
  }
  return text;
}

const boardLists = new Map();

route("board/*", async (container, [name], query) => {
  const about = site.about.board?.lists.find((list) => list.name === name);
  if (!about) return replaceContent(container, el("p", { class: "empty" }, `There is no list ${name} on this board.`));
  if (!boardLists.has(name)) boardLists.set(name, new BoardList(about, site.about.board));
  const list = boardLists.get(name);
  replaceContent(container, list.element);
  await list.read();
  list.take(query);
  keys.set("/", () => list.search.focus());
});
