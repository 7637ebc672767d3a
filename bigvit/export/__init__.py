"""Handing a trained model on: a folder that timm, transformers and ONNX Runtime load."""
