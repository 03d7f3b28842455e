"""Playing the games of one run in several processes: a writer leases games to workers, which may die."""
