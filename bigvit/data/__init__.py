"""Images: where they come from, in which order, how they are varied, and how they reach a rank."""
