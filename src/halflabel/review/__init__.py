"""Reviewing labels: choose questions, ask them on a local web page, and store the answers as label rows."""
