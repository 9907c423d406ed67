"""vLLM as the sampler: a process of its own that is given the policy's weights; the trainer's own scorer scores."""
