"""Maps of labels: what a teacher says of each cell of each image, kept on disk."""
