// Routes: an address shows a section of the page, or a view that a route draws. Each file of views registers its routes.

const routes = []; // {names: ["run", null, "games"], show(container, values, query)}

// route("run/*/games", show): each * matches any part of an address; the view gets these parts as its values.
function route(pattern, show) {
  routes.push({ names: pattern.split("/").map((name) => (name === "*" ? null : name)), show });
}

function matchRoute(parts) {
  for (const { names, show } of routes) {
    if (names.length !== parts.length || !names.every((name, index) => name === null || name === parts[index])) continue;
    return { show, values: parts.filter((_, index) => names[index] === null) };
  }
  return null;
}

// address("run", id, "games", {q: "x"}) returns "#/run/ID/games?q=x", the link to that view.
function address(...parts) {
  const query = typeof parts.at(-1) === "object" ? new URLSearchParams(Object.entries(parts.pop()).filter(([, value]) => value)) : "";
  return `#/${parts.map(encodeURIComponent).join("/")}${String(query) ? `?${query}` : ""}`;
}

// Whether a hash is the address of a view; all other hashes are anchors on the page.
function isRoute(hash) {
  return hash.startsWith("#/");
}

function currentAddress() {
  const [path, query] = (isRoute(location.hash) ? location.hash.slice(2) : "").split("?");
  return { parts: path === "" ? [] : path.split("/").map(decode), query: new URLSearchParams(query) };
}

function decode(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // an address that was typed by hand may have an invalid escape
  }
}
