"""What the server answers: the API, which clients use, and the pages, which people look at."""
