"""What `bigvit doctor` asks of every host, and what it says of the answers."""
