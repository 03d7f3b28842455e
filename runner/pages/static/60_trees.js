// Trees of answers: the list, and a view of one tree with the value of each answer and the training pairs.

const MAX_OPENED = 2000; // "Open all" opens at most so many nodes, because each has texts

class Trees {
  constructor(about) {
    this.about = about; // of the run; about.trees is {count, pieces: [first, ...]}
    this.pieces = new Map();
    this.reading = null;
  }

  async rows() {
    this.reading ??= loadPiece(`${this.about.slug}-treelist`).then((list) => list.trees);
    return this.reading;
  }

  // Find the place of a tree among all, by its datapoint and its number.
  async place(datapoint, number) {
    return (await this.rows()).findIndex((row) => row.datapoint === datapoint && row.tree === number);
  }

  async tree(place) {
    const number = this.about.trees.pieces.findLastIndex((first) => first <= place);
    if (!this.pieces.has(number)) {
      this.pieces.clear(); // a piece has many trees and loads quickly
      this.pieces.set(number, loadPiece(`${this.about.slug}-trees-${number}`));
    }
    const piece = await this.pieces.get(number);
    return { ...piece.trees[place - piece.first], read: (text) => read(piece.texts, text) };
  }
}

const treesOf = new WeakMap();

function treesOfRun(run) {
  if (!run.about.trees) return null;
  if (!treesOf.has(run)) treesOf.set(run, new Trees(run.about));
  return treesOf.get(run);
}

function treeAddress(run, row) {
  return address("run", run.about.run_id, "tree", row.datapoint, { tree: row.tree ? String(row.tree) : "" });
}

function treeName(row) {
  return row.tree ? `${row.datapoint}, tree ${row.tree}` : row.datapoint;
}

function worthOf(value) {
  return formatNumber(value, 3);
}

// The list

function treeTable(run, rows) {
  const cell = (value) => el("td", { class: "number" }, value);
  return el("div", { class: "scrolls", role: "region", "aria-label": "Trees", tabindex: "0" }, el("table", {},
    el("caption", {}, "Trees of answers. Right: the number of branches with a right verdict"),
    el("thead", {}, el("tr", {}, ["Datapoint", "Label", "Branches", "Right", "Left out", "Pairs"].map((title, at) =>
      el("th", { scope: "col", class: at > 1 ? "number" : null }, title)))),
    el("tbody", {}, rows.map((row) => el("tr", {},
      el("th", { scope: "row" }, el("a", { href: treeAddress(run, row) }, treeName(row))), el("td", {}, verdictWord(row.label)),
      cell(row.branches), cell(row.right), cell(row.left_out), cell(row.pairs))))));
}

async function showTrees(container, run) {
  const rows = await treesOfRun(run).rows();
  const search = el("input", { type: "search", placeholder: "Search datapoints…", "aria-label": "Search trees" });
  const count = el("p", { class: "count", role: "status" });
  const list = el("div");
  const limit = 500;
  const draw = () => {
    const words = search.value.toLowerCase().split(/\s+/).filter(Boolean);
    const matches = rows.filter((row) => words.every((word) => treeName(row).toLowerCase().includes(word)));
    const cut = matches.length > limit ? `; the first ${limit} are shown, search for the others` : "";
    count.textContent = `${matches.length.toLocaleString("en")} of ${rows.length.toLocaleString("en")} trees${cut}`;
    replaceContent(list, treeTable(run, matches.slice(0, limit)));
  };
  search.addEventListener("input", draw);
  const id = run.about.run_id;
  replaceContent(container, el("h2", {}, "Trees"), el("p", { class: "within" }, el("a", { href: address("run", id) }, `Run ${id}`)),
    el("div", { class: "tools" }, search), count, list);
  draw();
}

// One tree

class TreeView {
  constructor(run, tree, neighbors) {
    this.run = run;
    this.tree = tree;
    this.neighbors = neighbors; // {before, after}: the rows of the previous and the next tree
  }

  element() {
    const { tree } = this;
    this.root = el("div", { class: "tree" }, this.list(tree.nodes));
    return [
      el("nav", { class: "within", "aria-label": "Trees" }, el("a", { href: address("run", this.run.about.run_id, "trees") }, "All trees (u)"),
        this.neighbors.before ? el("a", { href: treeAddress(this.run, this.neighbors.before), rel: "prev" }, "Previous (k)") : null,
        this.neighbors.after ? el("a", { href: treeAddress(this.run, this.neighbors.after), rel: "next" }, "Next (j)") : null),
      el("h2", {}, treeName(tree)),
      el("p", { class: "soft" }, `Label ${verdictWord(tree.label)} · ${tree.branches} branches, ${tree.right} of them right`,
        tree.left_out ? ` · ${tree.left_out} failed branches are left out` : "", ` · expected: ${this.worth(tree.worth)}`),
      this.trainingPairs(),
      el("div", { class: "tools" },
        el("button", { type: "button", onclick: () => this.openAll(true) }, "Open all (e)"),
        el("button", { type: "button", onclick: () => this.openAll(false) }, "Close all (c)")),
      this.root,
    ];
  }

  worth(worth) {
    return Object.entries(worth).map(([agent, value]) => `${agent} ${worthOf(value)}`).join(", ");
  }

  // Show the training pairs of this tree, with links to both answers of each.
  trainingPairs() {
    const { learnt } = this.tree;
    if (!learnt.length) return el("p", {}, "No step has both a good and a bad answer, so there are no training pairs.");
    const link = (path, name, value) => el("button", { type: "button", onclick: () => this.reach(path) }, `${name}, worth ${worthOf(value)}`);
    return el("section", {}, el("h3", {}, "Training pairs"),
      el("p", { class: "soft" }, "A training uses the pairs of the agents whose models it trains, without duplicates."), el("ul", { class: "pairs" }, learnt.map((pair) => el("li", {},
      `${pair.agent} in round ${pair.round}: `,
      link(pair.chosen, `chosen, answer ${pair.chosen.join(".")}`, pair.rewards[0]), " over ",
      link(pair.rejected, `rejected, answer ${pair.rejected.join(".")}`, pair.rewards[1])))));
  }

  list(nodes) {
    return el("ol", {}, nodes.map((node) => el("li", {}, this.node(node))));
  }

  // Create the element of a node. Its content is created when it is first opened, since a tree may have thousands of nodes.
  node(node) {
    const details = el("details", { "data-path": node.path.join(".") }, this.head(node));
    details.fill = () => {
      details.fill = () => {};
      add(details, [
        node.said.map((said) => el("div", { class: `text${said.learnt ? ` is-${said.learnt}` : ""}` }, this.tree.read(said.text))),
        node.game ? el("p", {}, el("a", { href: address("run", this.run.about.run_id, "game", node.game) }, "Full game")) : null,
        node.nodes.length ? this.list(node.nodes) : null,
      ]);
    };
    details.addEventListener("toggle", () => details.open && details.fill());
    return details;
  }

  head(node) {
    const speakers = node.said.map((said) => said.agent).join(", ") || "no agent speaks";
    const worth = node.said.map((said) => `${said.agent} ${worthOf(node.worth[said.agent])}`).join(", ");
    return el("summary", {},
      el("b", {}, `${node.path.join(".")} ${speakers}`),
      worth ? el("span", { class: "worth" }, `worth ${worth}`) : null,
      node.said.map((said) => (said.learnt ? el("span", { class: said.learnt }, `${said.learnt} (${said.agent})`) : null)),
      node.nodes.length ? el("span", { class: "soft" }, `${node.leaves} branches, ${node.right} right`) : verdictOfLeaf(node));
  }

  openAll(open) {
    const nodes = () => [...this.root.querySelectorAll("details")].filter((details) => details.open !== open);
    let left = MAX_OPENED;
    for (let closed = nodes(); closed.length && left > 0; closed = nodes()) {
      for (const details of closed.slice(0, left)) {
        if (open) details.fill();
        details.open = open;
      }
      left -= closed.length;
    }
    announce(open ? (left > 0 ? "All answers are open." : `The first ${MAX_OPENED} answers are open.`) : "All answers are closed.");
  }

  // Open all nodes on the path to an answer, and scroll to it.
  reach(path) {
    let details = null;
    for (let depth = 1; depth <= path.length; depth++) {
      details = this.root.querySelector(`details[data-path="${path.slice(0, depth).join(".")}"]`);
      details.fill();
      details.open = true;
    }
    const head = details.querySelector("summary");
    head.focus();
    head.scrollIntoView({ block: "center" });
  }
}

function verdictOfLeaf(node) {
  const word = node.decision === null ? "none" : verdictWord(node.decision);
  const kind = node.decision === null ? "none" : node.correct ? "right" : "wrong";
  return el("span", { class: `verdict ${kind}` }, `verdict ${word}`);
}

function runWithTrees(container, id) {
  const run = site.runs.get(id);
  if (run && treesOfRun(run)) return run;
  const why = run ? `The run ${id} has no trees.` : `There is no run ${id} in this page.`;
  replaceContent(container, el("p", { class: "empty" }, why));
  return null;
}

route("run/*/trees", async (container, [id]) => {
  const run = runWithTrees(container, id);
  if (run) await showTrees(container, run);
});

route("run/*/tree/*", async (container, [id, datapoint], query) => {
  const run = runWithTrees(container, id);
  if (!run) return;
  const trees = treesOfRun(run);
  const number = Number(query.get("tree") ?? 0);
  const place = await trees.place(datapoint, number);
  if (place < 0) return replaceContent(container, el("p", { class: "empty" }, `The run ${id} has no tree of ${datapoint}.`));
  const rows = await trees.rows();
  const view = new TreeView(run, await trees.tree(place), { before: rows[place - 1], after: rows[place + 1] });
  replaceContent(container, view.element());
  const step = (row) => () => { if (row) location.hash = treeAddress(run, row); };
  keys.set("j", step(rows[place + 1])).set("k", step(rows[place - 1])).set("u", () => { location.hash = address("run", id, "trees"); });
  keys.set("e", () => view.openAll(true)).set("c", () => view.openAll(false));
});
