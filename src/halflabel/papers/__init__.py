"""Published tables of five papers, run again and compared with the printed numbers, and the papers' figures."""
