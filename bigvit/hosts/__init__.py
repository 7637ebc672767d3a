"""The hosts of a run: reaching them, what they are given, what is wrong with them."""
