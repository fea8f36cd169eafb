"""`python -m halflabel`, and so `torchrun -m halflabel`: the command line."""

from __future__ import annotations

from halflabel.cli import main

__all__: list[str] = []

if __name__ == "__main__":
    main()
