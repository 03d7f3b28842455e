"""The HTTP side of a server: the API for clients, the pages for people, and the middleware around both."""
