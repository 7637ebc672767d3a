"""One rank's part of a large run, rehearsed on this machine: with torch's fake process group, and
tensors without memory. What was proved, and what could not be, is a certificate."""
