"""Ranks: how they meet, agree, watch each other and stop. No DeepSpeed, no model."""
