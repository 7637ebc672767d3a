"""Building blocks of the models, one concept a file.

Shapes: B images of a micro-batch, N tokens, D width, H heads, d = D / H, C channels, h x w grid.
"""
