"""What a trained model's features are worth without training on: neighbours, retrieval, a probe."""
