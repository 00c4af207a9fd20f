"""Pure arithmetic on records: breakdown, overlap, scaling."""
