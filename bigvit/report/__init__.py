"""A run told on one page: what it was, how it went, and what its model does. `sections.py` says
what is on it, `html.py` and `markdown.py` write it down."""
