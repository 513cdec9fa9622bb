"""How results are shown: conditions, tables, plots, pages."""
