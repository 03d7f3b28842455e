"""Reading runs that were played."""
