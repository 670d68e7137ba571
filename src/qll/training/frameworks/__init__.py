"""The property in training loops that others own: Lightning, Hugging Face's Trainer."""
