"""Commands that show, query, compare and export what was played."""
