// Routes: an address shows a section of the page, or a view that a route draws. Each file of views registers its routes.

const routes = []; // {names: ["run", null, "games"], show(place, values, words)}

// route("run/*/games", show): each * is a value, decoded.
function route(pattern, show) {
  routes.push({ names: pattern.split("/").map((name) => (name === "*" ? null : name)), show });
}

function matched(parts) {
  for (const { names, show } of routes) {
    if (names.length !== parts.length || !names.every((name, at) => name === null || name === parts[at])) continue;
    return { show, values: parts.filter((_, at) => names[at] === null) };
  }
  return null;
}

// address("run", id, "games", {q: "x"}): the link to it.
function address(...parts) {
  const words = typeof parts.at(-1) === "object" ? new URLSearchParams(Object.entries(parts.pop()).filter(([, value]) => value)) : "";
  return `#/${parts.map(encodeURIComponent).join("/")}${String(words) ? `?${words}` : ""}`;
}

// Other hashes are anchors on the page.
function isRoute(hash) {
  return hash.startsWith("#/");
}

function addressed() {
  const [path, words] = (isRoute(location.hash) ? location.hash.slice(2) : "").split("?");
  return { parts: path === "" ? [] : path.split("/").map(decoded), words: new URLSearchParams(words) };
}

function decoded(part) {
  try {
    return decodeURIComponent(part);
  } catch {
    return part; // typed by hand
  }
}
