"""Three-party replicated secret sharing as TensorFlow graphs."""
