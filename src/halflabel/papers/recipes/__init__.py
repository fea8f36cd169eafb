"""How the tables of each paper are to be run, a file per paper."""
