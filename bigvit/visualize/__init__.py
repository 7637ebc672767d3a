"""Looking inside a trained model, and at what it is trained on."""
