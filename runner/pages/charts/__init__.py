"""Charts as SVG: plain numbers and names in, `Markup` out; the same bytes for the same data."""
