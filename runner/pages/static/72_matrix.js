// The matrix of datapoints by runs: in which runs the verdicts about a datapoint are right.

const MATRIX = {
  __proto__: null,
  differ: ["Runs differ", (shares) => new Set(shares).size > 1],
  wrong: ["Wrong in every run", (shares) => shares.length > 0 && shares.every((share) => share === 0)],
  right: ["Right in every run", (shares) => shares.length > 0 && shares.every((share) => share === 1)],
};
const MATRIX_ROWS = 500; // rows that are drawn at first, and with each click on "Show more"

class Matrix {
  constructor() {
    this.ids = [...site.runs.keys()];
    this.only = "";
    this.drawn = MATRIX_ROWS;
    this.search = el("input", { type: "search", placeholder: "Search datapoints…", "aria-label": "Search datapoints", oninput: () => this.onSearch() });
    this.filters = [["", "All"], ...Object.entries(MATRIX).map(([name, [title]]) => [name, title])].map(([name, title]) => el("a", { "data-only": name }, title));
    this.count = el("p", { class: "count", role: "status" });
    this.body = el("tbody");
    this.more = el("button", { type: "button", onclick: () => { this.drawn += MATRIX_ROWS; this.draw(); } }, "Show more");
    const runs = this.ids.map((id) => el("th", { scope: "col" }, el("a", { href: address("run", id) }, id)));
    this.element = el("div", {}, el("h2", {}, "Datapoints by runs"), el("div", { class: "tools" }, this.search),
      el("nav", { class: "within", "aria-label": "Filters" }, this.filters), this.count,
      el("div", { class: "scrolls", role: "region", tabindex: "0", "aria-label": "Datapoints by runs" },
        el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Datapoint"), el("th", { scope: "col" }, "Label"), runs)), this.body)), this.more);
  }

  // Count the games of each datapoint in each run that are right or not; rows with the largest difference come first.
  async read() {
    const rows = new Map();
    for (const [index, run] of [...site.runs.values()].entries()) {
      await run.read();
      for (let place = 0; place < run.games.length; place++) {
        const [datapoint, label, id, right, decision, outcome] = ["datapoint", "label", "id", "correct", "decision", "outcome"].map((name) => run.games.value(name, place));
        if (!rows.has(datapoint)) rows.set(datapoint, { datapoint, label, first: [run, place], cells: this.ids.map(() => ({ right: 0, games: 0, id: null })) });
        const cell = rows.get(datapoint).cells[index];
        Object.assign(cell, { id: cell.id ?? id, result: resultOf({ correct: right, decision, outcome })[0], games: cell.games + (right !== null), right: cell.right + (right === true) });
      }
    }
    const shares = (row) => row.cells.filter((cell) => cell.games).map((cell) => cell.right / cell.games);
    const spread = (row) => (row.shares.length ? Math.max(...row.shares) - Math.min(...row.shares) : -1);
    this.rows = [...rows.values()].map((row) => ({ ...row, shares: shares(row) })).sort((row, other) => spread(other) - spread(row));
  }

  address(only = this.only) {
    return address("matrix", { only, q: this.search.value });
  }

  async show(only, q) {
    this.only = only;
    this.drawn = MATRIX_ROWS;
    this.search.value = q;
    if (!this.rows) await this.read();
    this.draw();
  }

  onSearch() {
    history.replaceState(null, "", this.address());
    this.drawn = MATRIX_ROWS;
    if (this.rows) this.draw();
  }

  // Draw the first matching rows. Filters and search apply to all rows.
  draw() {
    const words = wordsOf(this.search.value), test = MATRIX[this.only]?.[1];
    const rows = this.rows.filter((row) => (test?.(row.shares) ?? true) && hasAllWords(...row.first, words));
    for (const link of this.filters) {
      link.setAttribute("href", this.address(link.dataset.only));
      link.toggleAttribute("aria-current", link.dataset.only === this.only);
    }
    const cut = rows.length > this.drawn ? `; the first ${count(this.drawn)} are shown` : "";
    this.count.textContent = `${count(rows.length)} of ${count(this.rows.length)} datapoints, those with the largest difference first${cut}`;
    this.more.hidden = !cut;
    this.body.replaceChildren(...rows.slice(0, this.drawn).map((row) => el("tr", {}, el("th", { scope: "row" }, row.datapoint), el("td", {}, verdictWord(row.label) ?? "not known"),
      row.cells.map((cell, at) => el("td", {}, cell.id ? el("a", { href: address("run", this.ids[at], "game", cell.id) }, this.mark(cell)) : "–")))));
  }

  mark({ right, games, result }) {
    if (!games) return el("span", { class: "verdict none" }, result); // lost in transport, or without a label
    return games === 1 ? rightMark(right === 1) : el("span", { class: `verdict ${right === games ? "right" : right ? "none" : "wrong"}` }, `right in ${right} of ${games}`);
  }
}

route("matrix", async (container, _, query) => {
  const matrix = (site.matrix ??= new Matrix());
  replaceContent(container, matrix.element);
  keys.set("/", () => matrix.search.focus());
  await matrix.show(query.get("only") ?? "", query.get("q") ?? "");
});
