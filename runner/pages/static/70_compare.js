// Two runs compared game by game: a list of pairs, different verdicts first, and a view of one pair.

/** @type {Record<string, [string, (base: boolean | null, other: boolean | null) => boolean]>} */
const PAIRS = {
  __proto__: null,
  flipped: ["Flipped", (base, other) => base !== null && other !== null && base !== other],
  base: ["Right only in the first", (base, other) => base === true && other === false],
  other: ["Right only in the second", (base, other) => base === false && other === true],
  neither: ["Right in neither", (base, other) => base === false && other === false],
  both: ["Right in both", (base, other) => base === true && other === true],
};

// Return the runs that a run is compared with on this page.
function comparisonsOf(id) {
  return (site.about.compares ?? []).filter((comparison) => comparison.base === id || comparison.other === id).map((comparison) => (comparison.base === id ? comparison.other : comparison.base));
}

function comparisonNamed(base, other) {
  return (site.about.compares ?? []).find((comparison) => comparison.base === base && comparison.other === other);
}

async function pairsOf(about) {
  about.read ??= loadPiece(about.pairs);
  return (await about.read).columns;
}

// Return the ids of a run's games whose verdict differs from that of their counterpart.
async function flipsOf(run, id) {
  const own = run.about.run_id;
  const about = comparisonNamed(own, id) ?? comparisonNamed(id, own);
  if (!about) return new Set();
  const pairs = await pairsOf(about);
  const ids = about.base === own ? pairs.base : pairs.other;
  return new Set(ids.filter((_, place) => PAIRS.flipped[1](pairs.base_right[place], pairs.other_right[place])));
}

class PairList {
  constructor(about) {
    this.about = about;
    this.only = "";
    this.q = "";
    this.shown = [];
    this.search = el("input", { type: "search", placeholder: "Search datapoints…", "aria-label": "Search pairs", oninput: () => this.change({ q: this.search.value }) });
    this.buttons = new Map(Object.entries(PAIRS).map(([name, [title]]) => [
      name, el("button", { type: "button", "aria-pressed": "false", onclick: () => this.change({ only: this.only === name ? "" : name }) }, title),
    ]));
    this.count = el("p", { class: "count", role: "status" });
    this.body = el("tbody");
    this.table = el("table", { class: "games pairs" }, el("thead", {}, el("tr", {}, ["Datapoint", "Label", about.base, about.other].map((title) => el("th", { scope: "col" }, title)))), this.body);
    this.view = el("div", { class: "scrolled", tabindex: "0", role: "region", "aria-label": "Pairs of games" }, this.table);
    this.view.addEventListener("scroll", () => requestAnimationFrame(() => this.draw()), { passive: true });
    new ResizeObserver(() => { this.drawn = null; this.draw(); }).observe(this.view);
    this.above = el("tr", { "aria-hidden": "true" }, el("td", { colspan: 4 }));
    this.below = el("tr", { "aria-hidden": "true" }, el("td", { colspan: 4 }));
    this.element = el("div", {}, el("h2", {}, "Games in pairs"),
      el("p", { class: "which" }, el("a", { href: address("compare", about.base, about.other) }, "Differences in numbers")),
      el("div", { class: "tools" }, this.search, el("div", { class: "filters", role: "group", "aria-label": "Filters" }, [...this.buttons.values()])), this.count, this.view);
  }

  address() {
    return address("compare", this.about.base, this.about.other, "games", { only: this.only, q: this.q });
  }

  change(part) {
    Object.assign(this, part);
    history.replaceState(null, "", this.address());
    this.view.scrollTop = 0;
    return this.apply();
  }

  take(query) {
    this.only = query.get("only") in PAIRS ? query.get("only") : "";
    this.search.value = this.q = query.get("q") ?? "";
    return this.apply();
  }

  async apply() {
    const pairs = (this.pairs = await pairsOf(this.about));
    const [test, wanted] = [PAIRS[this.only]?.[1], this.q.toLowerCase()];
    this.shown = [];
    for (let place = 0; place < pairs.datapoint.length; place++) {
      if (test && !test(pairs.base_right[place], pairs.other_right[place])) continue;
      if (wanted && !pairs.datapoint[place].toLowerCase().includes(wanted)) continue;
      this.shown.push(place);
    }
    for (const [name, button] of this.buttons) button.setAttribute("aria-pressed", String(this.only === name));
    this.count.textContent = `${count(this.shown.length)} of ${count(pairs.datapoint.length)} pairs, different verdicts first`;
    this.table.setAttribute("aria-rowcount", String(this.shown.length + 1));
    this.drawn = null;
    this.draw();
  }

  draw() {
    if (!this.pairs || !this.view.clientHeight) return;
    const first = Math.max(0, Math.floor(this.view.scrollTop / ROW) - EXTRA_ROWS);
    const last = Math.min(this.shown.length, first + Math.ceil(this.view.clientHeight / ROW) + 2 * EXTRA_ROWS);
    if (this.drawn === `${first} ${last}`) return;
    this.drawn = `${first} ${last}`;
    this.above.firstChild.style.height = `${first * ROW}px`;
    this.below.firstChild.style.height = `${(this.shown.length - last) * ROW}px`;
    const { pairs } = this;
    this.body.replaceChildren(this.above, ...this.shown.slice(first, last).map((place, index) => el("tr", { "aria-rowindex": first + index + 2 },
      el("td", {}, el("a", { href: this.link(place) }, pairs.datapoint[place])), el("td", {}, verdictWord(pairs.label[place])),
      el("td", {}, rightMark(pairs.base_right[place])), el("td", {}, rightMark(pairs.other_right[place])))), this.below);
  }

  link(place) {
    return address("compare", this.about.base, this.about.other, "pair", this.pairs.base[place] ?? "-", this.pairs.other[place] ?? "-");
  }

  // Return the link to the pair that is `step` rows after a pair in the filtered list.
  neighbor(base, other, step) {
    const index = this.shown.findIndex((candidate) => (this.pairs.base[candidate] ?? "-") === base && (this.pairs.other[candidate] ?? "-") === other);
    const next = index < 0 ? undefined : this.shown[index + step];
    return next === undefined ? undefined : this.link(next);
  }
}

function rightMark(right) {
  const [word, kind] = right === null ? ["not played", "none"] : right ? ["right", "right"] : ["not right", "wrong"];
  return el("span", { class: `verdict ${kind}` }, word);
}

// Draw one game of a pair in the view of its run.
async function drawHalf(run, id) {
  if (id === "-") return el("p", { class: "empty" }, `${run.about.run_id} has no counterpart of this game.`);
  await run.read();
  const row = run.games.row(id);
  if (!row) return el("p", { class: "empty" }, `There is no game ${id} in ${run.about.run_id}.`);
  const view = new GameView(run);
  const game = await run.games.game(row.place);
  return el("section", { class: "half" },
    el("h3", {}, el("a", { href: view.link(id) }, run.about.run_id), " ", verdictMark(row)),
    view.facts(row, game),
    [...groupByRound(game.turns)].map(([number, turns]) => view.round(number, turns, game)), view.columns(game));
}

function pairList(container, base, other) {
  const about = comparisonNamed(base, other);
  if (about) return (about.list ??= new PairList(about));
  replaceContent(container, el("p", { class: "empty" }, `${base} and ${other} are not compared in this page.`));
  return null;
}

route("compare/*/*/games", async (container, [base, other], query) => {
  const list = pairList(container, base, other);
  if (!list) return;
  replaceContent(container, list.element);
  keys.set("/", () => list.search.focus());
  await list.take(query);
});

route("compare/*/*/pair/*/*", async (container, [base, other, baseGame, otherGame]) => {
  const list = pairList(container, base, other);
  if (!list) return;
  if (!list.pairs) await list.apply();
  const step = (by) => { const next = list.neighbor(baseGame, otherGame, by); if (next) location.hash = next; };
  keys.set("j", () => step(1)).set("k", () => step(-1)).set("u", () => { location.hash = list.address(); });
  const runs = [site.runs.get(base), site.runs.get(other)];
  const halves = [await drawHalf(runs[0], baseGame), await drawHalf(runs[1], otherGame)];
  const place = baseGame !== "-" && list.pairs.base.includes(baseGame) ? list.pairs.base.indexOf(baseGame) : list.pairs.other.indexOf(otherGame);
  const link = (by, label, key) => { const next = list.neighbor(baseGame, otherGame, by); return next ? el("a", { class: "step", href: next, "aria-keyshortcuts": key }, label) : el("span", { class: "step off" }, label); };
  replaceContent(container, el("header", { class: "game" },
    el("nav", { "aria-label": "From pair to pair" }, el("a", { href: list.address(), "aria-keyshortcuts": "u" }, "All pairs"), link(-1, "Previous", "k"), link(1, "Next", "j")),
    el("h2", {}, list.pairs.datapoint[place] ?? "A pair"), el("p", { class: "which" }, place < 0 ? null : `label ${verdictWord(list.pairs.label[place])} `, copyButton(() => location.href, "Copy the link"))),
  el("div", { class: "halves" }, halves));
  announce(`The games of ${list.pairs.datapoint[place] ?? "a pair"} side by side`);
});
