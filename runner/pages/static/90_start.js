// What the address says is shown; keys lead from game to game.

async function start() {
  const element = document.getElementById("about");
  if (!element) return;
  const about = JSON.parse(element.textContent);
  document.documentElement.classList.add("scripted");
  const places = Object.fromEntries(["summary", "games", "game"].map((name) => [name, document.getElementById(name)]));
  if (!places.games || !about.count) return;
  await notes.open(about);
  const games = new Games(about);
  const list = new List(games, places.games);
  const view = new GameView(games, list, about, places.game);
  const title = document.title;

  const route = async () => {
    const [path, words] = location.hash.replace(/^#\/?/, "").split("?");
    const [name, id] = path.split("/");
    const wanted = name === "game" && id ? "game" : name === "games" ? "games" : "summary";
    for (const [one, place] of Object.entries(places)) place.hidden = one !== wanted;
    for (const link of document.querySelectorAll("nav.pages a")) {
      if (link.hash === `#/${wanted === "game" ? "games" : wanted}`) link.setAttribute("aria-current", "page");
      else link.removeAttribute("aria-current");
    }
    document.title = title;
    if (wanted === "games") list.take(new URLSearchParams(words));
    if (wanted === "game") {
      await view.show(decodeURIComponent(id), new URLSearchParams(words).get("as") ?? "");
      scrollTo(0, 0);
    }
  };

  addEventListener("hashchange", route);
  addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const step = { j: 1, k: -1 }[event.key];
    if (step && !places.game.hidden) {
      const id = list.beside(view.id, step);
      if (id !== undefined) location.hash = view.link(id);
    }
    if (event.key === "/" && !places.games.hidden) {
      event.preventDefault();
      list.search.focus();
    }
    if (event.key === "u" && !places.game.hidden) location.hash = list.address();
  });
  await route();
  await games.read(() => {
    list.apply();
    if (!places.game.hidden && view.id === null) route();
  });
}

start().catch((error) => announce(`This page cannot be shown in full: ${error.message}`));
