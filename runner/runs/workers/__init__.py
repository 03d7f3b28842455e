"""Games of one run in several processes: one writer, which leases games, and workers, which play them and may die."""
