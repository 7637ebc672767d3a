"""Making maps of labels with a dense teacher."""
