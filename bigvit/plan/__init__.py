"""What a run will need and take, before it starts: plain arithmetic. No torch here."""
