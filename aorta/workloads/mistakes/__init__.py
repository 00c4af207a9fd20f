"""A plain trainer that makes one known mistake, or not: what the catalogue of mistakes is checked by."""
