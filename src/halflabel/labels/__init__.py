"""Labels: tables of present, absent and unknown labels, and everything that reads, writes and changes them."""
