"""Charts, tables, filters: take data, return the choices of the person."""
