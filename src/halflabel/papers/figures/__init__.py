"""Figures of the papers, drawn from a finished run (`halflabel figures`)."""
