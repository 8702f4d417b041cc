"""Models that score a query vector against a table of entities."""
