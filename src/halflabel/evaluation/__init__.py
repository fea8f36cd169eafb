"""Numbers from scores and known labels; `metrics` lists the functions for users."""
