// Notes of the reader: beside the run where a server keeps them, else in this browser, until they are saved as a file.

class Notes {
  constructor(about, server) {
    this.all = [];
    this.run = about.run_id;
    this.slug = about.slug;
    this.server = server; // the address that takes notes; null: a file, which nobody can write to
  }

  async open() {
    const element = document.getElementById(`data-${this.slug}-notes`);
    this.all = element ? await unpacked(bytesOf(element.textContent.trim())) : [];
    if (!this.server) this.all = [...this.all, ...this.kept()];
  }

  kept() {
    try {
      return JSON.parse(localStorage.getItem(`nip-run notes ${this.run}`) ?? "[]");
    } catch {
      return [];
    }
  }

  of(id) {
    return this.all.filter((note) => note.rollout_id === id);
  }

  async write(id, text, tags) {
    const note = { rollout_id: id, text, tags };
    if (this.server) {
      const answer = await fetch(this.server, { method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(note) });
      if (!answer.ok) throw new Error(`the note was not kept: the server said ${answer.status}`);
      this.all.push(await answer.json());
      return;
    }
    this.all.push({ ...note, at: new Date().toISOString(), here: true });
    localStorage.setItem(`nip-run notes ${this.run}`, JSON.stringify(this.all.filter((one) => one.here)));
  }

  panel(id) {
    const list = el("ul", { class: "notes" });
    const fill = () => replaced(list, this.of(id).map((note) => el("li", {}, el("p", { class: "text" }, note.text), note.tags.map((tag) => el("span", { class: "badge" }, tag)))));
    const text = el("textarea", { id: "note", rows: "3" });
    const tags = el("input", { id: "tags", type: "text", placeholder: "tag, tag" });
    const said = el("p", { role: "status" });
    fill();
    return el("section", { class: "notes" }, el("h3", {}, "Notes"), list,
      el("form", {
        onsubmit: async (event) => {
          event.preventDefault();
          if (!text.value.trim() && !tags.value.trim()) return;
          try {
            await this.write(id, text.value.trim(), tags.value.split(",").map((tag) => tag.trim()).filter(Boolean));
            text.value = tags.value = "";
            replaced(said, this.server ? "Kept beside the run." : "Kept in this browser.");
            fill();
          } catch (error) {
            replaced(said, String(error.message));
          }
        },
      }, el("label", { for: "note" }, "Note"), text, el("label", { for: "tags" }, "Tags"), tags, el("button", { type: "submit" }, "Keep")), said);
  }
}
