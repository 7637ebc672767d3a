"""The run: where it starts, its loop, what it tells the world, how it stops."""
