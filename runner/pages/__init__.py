"""Records into pages: HTML, charts and the data that a page's script reads. Who serves them is not known here."""
