// The user's notes: a server saves them in the run's folder; otherwise this browser stores them until they are saved to a file.

let panels = 0; // a counter, for unique ids of elements

class Notes {
  constructor(about, server) {
    this.about = about;
    this.run = about.run_id;
    this.server = server; // the address that accepts notes; null for a page opened from a file
    this.onChange = null; // called after each change
    this.set([]);
  }

  set(notes) {
    this.all = notes;
    this.byGame = new Map();
    for (const note of notes) {
      const id = note.rollout_id ?? null;
      if (!this.byGame.has(id)) this.byGame.set(id, []);
      this.byGame.get(id).push(note);
    }
  }

  // Load the notes from the page or the server, and those that this browser stores.
  async open() {
    this.problem = null;
    const saved = this.about.notes || this.server ? await loadPiece(`${this.about.slug}-notes`).catch((error) => {
      this.problem = `The saved notes of the run cannot be read: ${error.message}`;
      return [];
    }) : [];
    const stored = this.server ? [] : this.storedNotes();
    const removed = new Set(stored.map((note) => note.removes));
    this.set([...saved, ...stored.filter((note) => !note.removes)].filter((note) => !removed.has(note.id)));
  }

  get storageKey() {
    return `nip-run notes ${this.run}`;
  }

  storedNotes() {
    try {
      const notes = JSON.parse(localStorage.getItem(this.storageKey) ?? "[]");
      return Array.isArray(notes) ? notes.filter((note) => typeof note?.id === "string" && (note.removes || (typeof note.text === "string" && Array.isArray(note.tags)))) : [];
    } catch {
      return []; // the browser stores nothing, or something that is not JSON
    }
  }

  // Return the notes on a game, or those on the run for null.
  of(id) {
    return this.byGame.get(id) ?? [];
  }

  // Whether a note on a game contains a word in lower case.
  mentions(id, word) {
    return this.of(id).some((note) => [note.text, ...note.tags].some((text) => text.toLowerCase().includes(word)));
  }

  async write(id, text, tags) {
    if (this.server) {
      this.set([...this.all, await this.post({ rollout_id: id, text, tags })]);
    } else {
      this.store({ id: newId(), at: new Date().toISOString().replace(/\.\d+Z$/, "Z"), rollout_id: id, text, tags });
      await this.open();
    }
    this.onChange?.();
  }

  async remove(note) {
    if (this.server) {
      await this.post({ removes: note.id });
      this.set(this.all.filter((other) => other !== note));
    } else {
      this.store({ id: newId(), at: new Date().toISOString(), removes: note.id });
      await this.open();
    }
    this.onChange?.();
  }

  async post(note) {
    const answer = await fetch(this.server, {
      method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify({ run: this.run, ...note }),
    });
    const result = await answer.json().catch(() => ({}));
    if (!answer.ok) throw new Error(result.error ?? `the server said ${answer.status}`);
    return result;
  }

  store(line) {
    const notes = this.storedNotes();
    const index = notes.findIndex((note) => note.id === line.removes);
    if (index >= 0) notes.splice(index, 1); // a note that only this browser stores needs no record of its removal
    else notes.push(line);
    localStorage.setItem(this.storageKey, JSON.stringify(notes));
  }

  // Save the notes that only this browser has to a file for `nip-run notes RUN --import`.
  save() {
    const lines = this.storedNotes().map((note) => `${JSON.stringify({ run_id: this.run, ...note })}\n`);
    const address = URL.createObjectURL(new Blob(lines, { type: "application/jsonl" }));
    el("a", { href: address, download: "notes.jsonl" }).click();
    setTimeout(() => URL.revokeObjectURL(address), 10_000);
  }

  panel(id) {
    if (site.about.served) return null; // notes belong to a run's folder, which a registry server does not have
    const name = `note-${++panels}`;
    const list = el("ul", { class: "notes" });
    const status = el("p", { role: "status", class: "soft" });
    const save = this.server ? null : el("button", { type: "button", onclick: () => this.save() }, "Save notes as a file");
    const attempt = async (act, message) => {
      try {
        await act();
        replaceContent(status, message);
      } catch (error) {
        replaceContent(status, `Not saved: ${error.message}`);
      }
      fill();
    };
    const fill = () => {
      if (this.problem) replaceContent(status, this.problem);
      replaceContent(list, this.of(id).map((note) => el("li", {},
        el("div", { class: "text" }, note.text),
        el("p", { class: "soft" }, note.tags.map((tag) => el("span", { class: "badge" }, tag)), " ", note.by ? `${note.by}, ` : null, note.at,
          " ", el("button", { type: "button", "aria-label": `Remove the note ${note.text.slice(0, 40)}`, onclick: () => attempt(() => this.remove(note), "Removed.") }, "Remove")))));
      if (save) save.hidden = this.storedNotes().length === 0;
    };
    const text = el("textarea", { id: name, rows: "3", maxlength: "20000" });
    const tags = el("input", { id: `${name}-tags`, type: "text", placeholder: "tag, tag" });
    const submit = (event) => {
      event.preventDefault();
      const values = [text.value.trim(), tags.value.split(",").map((tag) => tag.trim()).filter(Boolean)];
      if (!values[0] && !values[1].length) return;
      attempt(async () => {
        await this.write(id, ...values);
        text.value = tags.value = "";
      }, this.server ? "Saved in the run's folder." : "Saved in this browser.");
    };
    fill();
    return el("section", { class: "notes" }, el("h3", {}, "Notes"), list,
      el("form", { onsubmit: submit }, el("label", { for: name }, "Note"), text, el("label", { for: `${name}-tags` }, "Tags"), tags,
        el("button", { type: "submit" }, "Save")), status, save,
      save ? el("p", { class: "soft" }, "To add saved notes to the run's folder, run ", el("code", {}, `nip-run notes ${this.run} --import notes.jsonl`)) : null);
  }
}

function newId() {
  return [...crypto.getRandomValues(new Uint8Array(8))].map((byte) => byte.toString(16).padStart(2, "0")).join("");
}
