"""Training data: sources, tokenisation, samples, batches and prompts."""
