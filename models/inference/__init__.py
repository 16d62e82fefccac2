"""Private predictions: PrivateModel, its execution, deployed models and text generation."""
