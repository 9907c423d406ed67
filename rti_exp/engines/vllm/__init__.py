"""vLLM as the sampler: a separate process with the policy's weights, while the trainer's own scorer scores."""
