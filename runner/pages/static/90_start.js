// Show the view of the current address, and handle keys.

const keys = new Map(); // key -> action in the current view; each view sets its own

async function show() {
  const { parts, query } = currentAddress();
  const path = parts.join("/");
  const sections = [...document.querySelectorAll("section.page[data-route]")];
  const section = path === "" ? sections[0] : sections.find((candidate) => candidate.dataset.route === path);
  const view = document.getElementById("view");
  keys.clear();
  for (const candidate of sections) candidate.hidden = candidate !== section;
  view.hidden = Boolean(section);
  document.title = site.title;
  current(section ? section.dataset.route : path);
  const container = section?.querySelector("[data-live]"); // where a script adds content to a section
  const match = section ? container && matchRoute(section.dataset.route.split("/")) : matchRoute(parts);
  if (section) {
    if (match) await match.show(container, match.values, query);
    return;
  }
  if (match) await match.show(view, match.values, query);
  else replaceContent(view, el("p", { class: "empty" }, `There is no page ${path} on this site.`));
}

// Mark the navigation link whose address is the longest prefix of the current one.
function current(path) {
  const links = [...document.querySelectorAll('nav.pages a[href^="#"]')];
  const below = path.replace(/^(run\/[^/]+)\/game\//, "$1/games/"); // a game belongs to its list
  const fits = (link) => `${below}/`.startsWith(`${decode(link.hash.slice(2))}/`);
  const best = links.filter(fits).sort((one, other) => other.hash.length - one.hash.length)[0];
  for (const link of links) {
    if (link === best) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

// Move the focus for screen readers: to the heading of the new view, or the button that was just pressed.
function moveFocus(from, to) {
  const place = [...document.querySelectorAll("section.page")].find((section) => !section.hidden);
  const sameView = from.split("?")[0] === to.split("?")[0];
  const target = (sameView && place.querySelector('[aria-pressed="true"]')) || place.querySelector("h2, h3") || place;
  if (!target.matches("a, button, input")) target.tabIndex = -1;
  target.focus({ preventScroll: true });
}

// Make wide tables and code reachable, so that keys can scroll them.
function reachable() {
  for (const element of document.querySelectorAll(".page table, .page pre")) {
    if (element.scrollWidth > element.clientWidth && !element.hasAttribute("tabindex")) element.tabIndex = 0;
  }
}

function showProblem(error) {
  const message = `This page cannot be shown in full: ${error.message}`;
  const section = [...document.querySelectorAll("section.page")].find((candidate) => !candidate.hidden);
  section.querySelector(":scope > p.failed")?.remove();
  section.prepend(el("p", { class: "failed why" }, message));
  announce(message);
}

async function start() {
  site.about = JSON.parse(document.getElementById("about").textContent);
  site.title = document.title;
  document.documentElement.classList.add("scripted");
  for (const about of site.about.runs ?? []) site.runs.set(about.run_id, new Run(about));
  addEventListener("hashchange", (event) => {
    const [from, to] = [event.oldURL, event.newURL].map((url) => new URL(url).hash);
    if (to === "#main" || (to !== "" && !isRoute(to) && !isRoute(from))) return; // an anchor in the current view
    const place = isRoute(to) ? null : document.getElementById(to.slice(1));
    show().then(() => { place ? place.scrollIntoView() : scrollTo(0, 0); moveFocus(from, to); reachable(); }).catch(showProblem);
  });
  addEventListener("resize", reachable, { passive: true });
  addEventListener("keydown", (event) => {
    if (event.target.closest("input, textarea, select") || event.ctrlKey || event.metaKey || event.altKey) return;
    const action = keys.get(event.key) ?? (event.key === "?" ? help : undefined);
    if (!action) return;
    event.preventDefault();
    action();
  });
  for (const run of site.runs.values()) run.summary().catch(showProblem);
  if (site.about.live) new Live(site.about.live).start();
  await show().catch(showProblem);
  reachable();
}

start();
