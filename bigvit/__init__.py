"""bigvit: DeepSpeed-scaled training of large Vision Transformers by named recipes."""

__version__ = "0.1.0"
