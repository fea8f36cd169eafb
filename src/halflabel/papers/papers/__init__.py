"""The tables of the papers, one module each."""
