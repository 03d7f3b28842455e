"""The registry over HTTP for many users: accounts, uploads with checks, boards, competitions, pages."""
