// The matrix of datapoints by runs: in which runs the verdicts about a datapoint are right.

const MATRIX = {
  __proto__: null,
  differ: ["Runs differ", (shares) => new Set(shares).size > 1],
  wrong: ["Wrong in every run", (shares) => shares.every((share) => share === 0)],
  right: ["Right in every run", (shares) => shares.every((share) => share === 1)],
};
const MATRIX_ROWS = 500; // rows that are drawn at once

class Matrix {
  constructor() {
    this.ids = [...site.runs.keys()];
    const filters = Object.entries(MATRIX).map(([name, [title]]) => el("a", { href: address("matrix", { only: name }), "data-only": name }, title));
    this.count = el("p", { class: "count", role: "status" });
    this.body = el("tbody");
    const runs = this.ids.map((id) => el("th", { scope: "col" }, el("a", { href: address("run", id) }, id)));
    this.element = el("div", {}, el("h2", {}, "Datapoints by runs"),
      el("nav", { class: "within", "aria-label": "Filters" }, el("a", { href: address("matrix"), "data-only": "" }, "All"), filters), this.count,
      el("div", { class: "scrolls", role: "region", tabindex: "0", "aria-label": "Datapoints by runs" },
        el("table", {}, el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Datapoint"), el("th", { scope: "col" }, "Label"), runs)), this.body)));
  }

  // Count the right games of each datapoint in each run; rows with the largest difference come first.
  async read() {
    const rows = new Map();
    for (const [at, run] of [...site.runs.values()].entries()) {
      await run.read();
      for (let place = 0; place < run.games.length; place++) {
        const [datapoint, label, id, right] = ["datapoint", "label", "id", "correct"].map((name) => run.games.value(name, place));
        if (!rows.has(datapoint)) rows.set(datapoint, { datapoint, label, cells: this.ids.map(() => ({ right: 0, games: 0, id: null })) });
        const cell = rows.get(datapoint).cells[at];
        Object.assign(cell, { id: cell.id ?? id, games: cell.games + 1, right: cell.right + (right === true) });
      }
    }
    const shares = (row) => row.cells.filter((cell) => cell.games).map((cell) => cell.right / cell.games);
    const spread = (row) => Math.max(...row.shares) - Math.min(...row.shares);
    this.rows = [...rows.values()].map((row) => ({ ...row, shares: shares(row) })).sort((one, two) => spread(two) - spread(one));
  }

  async show(only) {
    if (!this.rows) await this.read();
    const rows = this.rows.filter((row) => MATRIX[only]?.[1](row.shares) ?? true);
    for (const link of this.element.querySelectorAll("nav a")) link.toggleAttribute("aria-current", link.dataset.only === only);
    this.count.textContent = `${count(Math.min(rows.length, MATRIX_ROWS))} of ${count(this.rows.length)} datapoints, those with the largest difference first`;
    this.body.replaceChildren(...rows.slice(0, MATRIX_ROWS).map((row) => el("tr", {}, el("th", { scope: "row" }, row.datapoint), el("td", {}, WORDS[row.label] ?? "not known"),
      row.cells.map((cell, at) => el("td", {}, cell.games ? el("a", { href: address("run", this.ids[at], "game", cell.id) }, this.mark(cell)) : "–")))));
  }

  mark({ right, games }) {
    return games === 1 ? rightMark(right === 1) : el("span", { class: `verdict ${right === games ? "right" : right ? "none" : "wrong"}` }, `right in ${right} of ${games}`);
  }
}

route("matrix", async (place, _, words) => {
  const matrix = (site.matrix ??= new Matrix());
  replaced(place, matrix.element);
  await matrix.show(words.get("only") ?? "");
});
