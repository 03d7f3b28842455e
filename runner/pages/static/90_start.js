// What the address says is shown; keys lead from game to game.

const keys = new Map(); // key -> what it does in the view that is shown; each view sets its own

async function show() {
  const { parts, words } = addressed();
  const path = parts.join("/");
  const sections = [...document.querySelectorAll("section.page[data-route]")];
  const section = path === "" ? sections[0] : sections.find((one) => one.dataset.route === path);
  const view = document.getElementById("view");
  keys.clear();
  for (const one of sections) one.hidden = one !== section;
  view.hidden = Boolean(section);
  document.title = site.title;
  current(section ? section.dataset.route : path);
  if (section) return;
  const found = matched(parts);
  if (found) await found.show(view, found.values, words);
  else replaced(view, el("p", { class: "empty" }, `There is no page ${path} here.`));
}

// The link of the navigation whose address is the longest beginning of this one.
function current(path) {
  const links = [...document.querySelectorAll("nav.pages a")];
  const fits = (link) => `${path}/`.startsWith(`${decoded(link.hash.slice(2))}/`);
  const best = links.filter(fits).sort((one, other) => other.hash.length - one.hash.length)[0];
  for (const link of links) {
    if (link === best) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

async function start() {
  site.about = JSON.parse(document.getElementById("about").textContent);
  site.title = document.title;
  document.documentElement.classList.add("scripted");
  for (const about of site.about.runs ?? []) site.runs.set(about.run_id, new Run(about));
  const failed = (error) => announce(`This page cannot be shown in full: ${error.message}`);
  addEventListener("hashchange", () => show().then(() => scrollTo(0, 0)).catch(failed));
  addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const does = keys.get(event.key) ?? (event.key === "?" ? help : undefined);
    if (!does) return;
    event.preventDefault();
    does();
  });
  await show().catch(failed);
}

start();
