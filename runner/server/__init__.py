"""The registry over HTTP, for many users: accounts, uploads that are checked before they are seen, boards, pages."""
