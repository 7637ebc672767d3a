"""Run folders and checkpoints: complete or absent, verified when read, readable at any sharding."""
