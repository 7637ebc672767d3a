"""Engines: how a task is spread over ranks. All of them give the same weights in float32."""
