// The runs of a page, each with its games, its list and its view of one game.

const site = { about: null, runs: new Map() };

class Run {
  constructor(about) {
    this.about = about; // {slug, run_id, count, lists, pieces, agents, channels}
    this.games = new Games(about);
    this.notes = new Notes(about, site.about.notes);
    this.analyses = new Analyses(about);
    this.notes.onChange = () => this.openList?.apply();
    this.openList = null;
    this.openView = null;
    this.reading = null;
  }

  get list() {
    return (this.openList ??= new List(this));
  }

  get view() {
    return (this.openView ??= new GameView(this));
  }

  // Load all rows of the list once, and redraw the list after each piece.
  read() {
    this.reading ??= this.notes.open().then(() => this.games.read(() => this.list.apply()));
    return this.reading;
  }
  // Show the notes of the run below its summary.
  async summary() {
    const section = [...document.querySelectorAll("section.page[data-route]")].find((section) => section.dataset.route === `run/${this.about.run_id}`);
    if (!section || site.about.served) return;
    await this.notes.open();
    section.append(this.notes.panel(null));
  }
}
