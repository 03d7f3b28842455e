// The help dialog with the keys of all views, which `?` opens.

/** @type {[string, [string, string][]][]} */
const HELP = [
  ["Games", [["/", "search"], ["j ↓, k ↑", "next row, previous row"], ["Page Down, Page Up", "a screen down or up"], ["Home, End", "first and last row"], ["Enter", "open the game"]]],
  ["One game, or a pair", [["j, k", "next game, previous game, in the filtered and sorted list"], ["u", "back to the list"]]],
  ["Everywhere", [["?", "show these keys"], ["Esc", "close"]]],
];

function help() {
  const dialog = el("dialog", { class: "help", "aria-labelledby": "help-title" },
    el("h2", { id: "help-title" }, "Keys"),
    HELP.map(([title, rows]) => [el("h3", {}, title), el("dl", {}, rows.map(([key, does]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, does)]))]),
    el("form", { method: "dialog" }, el("button", { type: "submit" }, "Close")));
  dialog.addEventListener("close", () => dialog.remove());
  document.body.append(dialog);
  dialog.showModal();
}
