// The user's notes: a server saves them in the run's folder; otherwise this browser stores them until they are saved to a file.

let panels = 0; // a counter for unique ids

class Notes {
  constructor(about, server) {
    this.about = about;
    this.run = about.run_id;
    this.server = server; // the address that accepts notes; null for a page opened from a file
    this.set([]);
  }

  set(notes) {
    this.all = notes;
    this.byGame = new Map();
    for (const note of notes) {
      const of = note.rollout_id ?? null;
      if (!this.byGame.has(of)) this.byGame.set(of, []);
      this.byGame.get(of).push(note);
    }
  }

  // Load the notes from the page or the server, and those that this browser stores.
  async open() {
    this.problem = null;
    const told = this.about.notes || this.server ? await carried(`${this.about.slug}-notes`).catch((error) => {
      this.problem = `The saved notes of the run cannot be read: ${error.message}`;
      return [];
    }) : [];
    const here = this.server ? [] : this.kept();
    const removed = new Set(here.map((note) => note.removes));
    this.set([...told, ...here.filter((note) => !note.removes)].filter((note) => !removed.has(note.id)));
  }

  get place() {
    return `nip-run notes ${this.run}`;
  }

  kept() {
    try {
      const found = JSON.parse(localStorage.getItem(this.place) ?? "[]");
      return Array.isArray(found) ? found.filter((note) => typeof note?.id === "string" && (note.removes || (typeof note.text === "string" && Array.isArray(note.tags)))) : [];
    } catch {
      return []; // a browser that keeps nothing, or something else stands there
    }
  }

  // Of a game, or, by null, of the run.
  of(id) {
    return this.byGame.get(id) ?? [];
  }

  // Whether a word in small letters stands in a note of a game.
  say(id, word) {
    return this.of(id).some((note) => [note.text, ...note.tags].some((text) => text.toLowerCase().includes(word)));
  }

  async write(id, text, tags) {
    if (this.server) {
      this.set([...this.all, await this.post({ rollout_id: id, text, tags })]);
    } else {
      this.keep({ id: newId(), at: new Date().toISOString().replace(/\.\d+Z$/, "Z"), rollout_id: id, text, tags });
      await this.open();
    }
    this.changed?.();
  }

  async remove(note) {
    if (this.server) {
      await this.post({ removes: note.id });
      this.set(this.all.filter((one) => one !== note));
    } else {
      this.keep({ id: newId(), at: new Date().toISOString(), removes: note.id });
      await this.open();
    }
    this.changed?.();
  }

  async post(note) {
    const answer = await fetch(this.server, {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ run: this.run, ...note }),
    });
    const said = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(said.error ?? `the server said ${answer.status}`);
    return said;
  }

  keep(line) {
    const before = this.kept();
    const own = before.findIndex((note) => note.id === line.removes);
    if (own >= 0) before.splice(own, 1); // it was never anywhere else
    else before.push(line);
    localStorage.setItem(this.place, JSON.stringify(before));
  }

  // The notes that only this browser has, as a file that `nip-run notes RUN --import` takes.
  save() {
    const lines = this.kept().map((note) => `${JSON.stringify({ run_id: this.run, ...note })}\n`);
    const address = URL.createObjectURL(new Blob(lines, { type: "application/jsonl" }));
    el("a", { href: address, download: "notes.jsonl" }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  }

  panel(id) {
    if (site.about.served) return null; // notes belong to a run's folder, which a registry server does not have
    const name = `note-${++panels}`;
    const list = el("ul", { class: "notes" });
    const said = el("p", { role: "status", class: "soft" });
    const save = this.server ? null : el("button", { type: "button", onclick: () => this.save() }, "Save notes as a file");
    const attempt = async (act, done) => {
      try {
        await act();
        replaced(said, done);
      } catch (error) {
        replaced(said, `Not saved: ${error.message}`);
      }
      fill();
    };
    const fill = () => {
      if (this.problem) replaced(said, this.problem);
      replaced(list, this.of(id).map((note) => el("li", {},
        el("div", { class: "text" }, note.text),
        el("p", { class: "soft" }, note.tags.map((tag) => el("span", { class: "badge" }, tag)), " ", note.by ? `${note.by}, ` : null, note.at,
          " ", el("button", { type: "button", "aria-label": `Remove the note ${note.text.slice(0, 40)}`, onclick: () => attempt(() => this.remove(note), "Removed.") }, "Remove")))));
      if (save) save.hidden = this.kept().length === 0;
    };
    const text = el("textarea", { id: name, rows: "3", maxlength: "20000" });
    const tags = el("input", { id: `${name}-tags`, type: "text", placeholder: "tag, tag" });
    const keep = (event) => {
      event.preventDefault();
      const told = [text.value.trim(), tags.value.split(",").map((tag) => tag.trim()).filter(Boolean)];
      if (!told[0] && !told[1].length) return;
      attempt(async () => {
        await this.write(id, ...told);
        text.value = tags.value = "";
      }, this.server ? "Saved in the run's folder." : "Saved in this browser.");
    };
    fill();
    return el("section", { class: "notes" }, el("h3", {}, "Notes"), list,
      el("form", { onsubmit: keep }, el("label", { for: name }, "Note"), text, el("label", { for: `${name}-tags` }, "Tags"), tags,
        el("button", { type: "submit" }, "Save")), said, save,
      save ? el("p", { class: "soft" }, "To add saved notes to the run's folder, run ", el("code", {}, `nip-run notes ${this.run} --import notes.jsonl`)) : null);
  }
}

function newId() {
  return [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
