"""DeepSpeed JSON: memory and communication only, never a value that changes a result."""
