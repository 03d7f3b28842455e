"""Draws charts as SVG from plain numbers and names. The same data gives the same bytes."""
