"""What is measured where a model says more of an image than one class."""
