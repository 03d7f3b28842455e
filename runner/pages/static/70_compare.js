// Two runs compared game by game: a list of pairs, different verdicts first, and a view of one pair.

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
  return (site.about.compares ?? []).filter((one) => one.base === id || one.other === id).map((one) => (one.base === id ? one.other : one.base));
}

function comparisonNamed(base, other) {
  return (site.about.compares ?? []).find((one) => one.base === base && one.other === other);
}

async function pairsOf(about) {
  about.read ??= carried(about.pairs);
  return (await about.read).columns;
}

// Return the ids of a run's games whose verdict differs from that of their counterpart.
async function flipsOf(run, id) {
  const own = run.about.run_id;
  const about = comparisonNamed(own, id) ?? comparisonNamed(id, own);
  if (!about) return new Set();
  const pairs = await pairsOf(about);
  const ids = about.base === own ? pairs.base : pairs.other;
  return new Set(ids.filter((_, at) => PAIRS.flipped[1](pairs.base_right[at], pairs.other_right[at])));
}

class PairList {
  constructor(about) {
    Object.assign(this, { about, only: "", q: "", shown: [] });
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

  take(words) {
    this.only = words.get("only") in PAIRS ? words.get("only") : "";
    this.search.value = this.q = words.get("q") ?? "";
    return this.apply();
  }

  async apply() {
    const pairs = (this.pairs = await pairsOf(this.about));
    const [test, wanted] = [PAIRS[this.only]?.[1], this.q.toLowerCase()];
    this.shown = [];
    for (let at = 0; at < pairs.datapoint.length; at++) {
      if (test && !test(pairs.base_right[at], pairs.other_right[at])) continue;
      if (wanted && !pairs.datapoint[at].toLowerCase().includes(wanted)) continue;
      this.shown.push(at);
    }
    for (const [name, button] of this.buttons) button.setAttribute("aria-pressed", String(this.only === name));
    this.count.textContent = `${count(this.shown.length)} of ${count(pairs.datapoint.length)} pairs, different verdicts first`;
    this.table.setAttribute("aria-rowcount", String(this.shown.length + 1));
    this.drawn = null;
    this.draw();
  }

  draw() {
    if (!this.pairs || !this.view.clientHeight) return;
    const first = Math.max(0, Math.floor(this.view.scrollTop / ROW) - BEYOND);
    const last = Math.min(this.shown.length, first + Math.ceil(this.view.clientHeight / ROW) + 2 * BEYOND);
    if (this.drawn === `${first} ${last}`) return;
    this.drawn = `${first} ${last}`;
    this.above.firstChild.style.height = `${first * ROW}px`;
    this.below.firstChild.style.height = `${(this.shown.length - last) * ROW}px`;
    const { pairs } = this;
    this.body.replaceChildren(this.above, ...this.shown.slice(first, last).map((at, place) => el("tr", { "aria-rowindex": first + place + 2 },
      el("td", {}, el("a", { href: this.link(at) }, pairs.datapoint[at])), el("td", {}, verdictWord(pairs.label[at])),
      el("td", {}, rightMark(pairs.base_right[at])), el("td", {}, rightMark(pairs.other_right[at])))), this.below);
  }

  link(at) {
    return address("compare", this.about.base, this.about.other, "pair", this.pairs.base[at] ?? "-", this.pairs.other[at] ?? "-");
  }

  // Return the link to the next or previous pair among the visible ones.
  beside(base, other, step) {
    const at = this.shown.findIndex((one) => (this.pairs.base[one] ?? "-") === base && (this.pairs.other[one] ?? "-") === other);
    const next = at < 0 ? undefined : this.shown[at + step];
    return next === undefined ? undefined : this.link(next);
  }
}

function rightMark(right) {
  const [word, kind] = right === null ? ["not played", "none"] : right ? ["right", "right"] : ["not right", "wrong"];
  return el("span", { class: `verdict ${kind}` }, word);
}

// Draw one game of a pair in the view of its run.
async function half(run, id) {
  if (id === "-") return el("p", { class: "empty" }, `${run.about.run_id} has no counterpart of this game.`);
  await run.read();
  const row = run.games.row(id);
  if (!row) return el("p", { class: "empty" }, `There is no game ${id} in ${run.about.run_id}.`);
  const view = new GameView(run);
  const game = await run.games.game(row.place);
  return el("section", { class: "half" },
    el("h3", {}, el("a", { href: view.link(id) }, run.about.run_id), " ", verdictMark(row)),
    view.facts(row, game),
    [...grouped(game.turns)].map(([number, turns]) => view.round(number, turns, game)), view.columns(game));
}

function pairList(place, base, other) {
  const about = comparisonNamed(base, other);
  if (about) return (about.list ??= new PairList(about));
  replaced(place, el("p", { class: "empty" }, `${base} and ${other} are not compared in this page.`));
  return null;
}

route("compare/*/*/games", async (place, [base, other], words) => {
  const list = pairList(place, base, other);
  if (!list) return;
  replaced(place, list.element);
  keys.set("/", () => list.search.focus());
  await list.take(words);
});

route("compare/*/*/pair/*/*", async (place, [base, other, one, two]) => {
  const list = pairList(place, base, other);
  if (!list) return;
  if (!list.pairs) await list.apply();
  const step = (by) => { const next = list.beside(one, two, by); if (next) location.hash = next; };
  keys.set("j", () => step(1)).set("k", () => step(-1)).set("u", () => { location.hash = list.address(); });
  const runs = [site.runs.get(base), site.runs.get(other)];
  const halves = [await half(runs[0], one), await half(runs[1], two)];
  const at = list.pairs.base.indexOf(one) >= 0 && one !== "-" ? list.pairs.base.indexOf(one) : list.pairs.other.indexOf(two);
  const link = (by, word, key) => { const next = list.beside(one, two, by); return next ? el("a", { class: "step", href: next, "aria-keyshortcuts": key }, word) : el("span", { class: "step off" }, word); };
  replaced(place, el("header", { class: "game" },
    el("nav", { "aria-label": "From pair to pair" }, el("a", { href: list.address(), "aria-keyshortcuts": "u" }, "All pairs"), link(-1, "Previous", "k"), link(1, "Next", "j")),
    el("h2", {}, list.pairs.datapoint[at] ?? "A pair"), el("p", { class: "which" }, at < 0 ? null : `label ${verdictWord(list.pairs.label[at])} `, copyButton(() => location.href, "Copy the link"))),
  el("div", { class: "halves" }, halves));
  announce(`The games of ${list.pairs.datapoint[at] ?? "a pair"} side by side`);
});
