"""DeepSpeed: the engine, what it reads of DeepSpeed's insides, and its configuration."""
