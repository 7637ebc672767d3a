"""One file a paper. A recipe is a module-level `Recipe`, named after its variable."""
