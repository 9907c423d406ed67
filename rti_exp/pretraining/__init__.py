"""How the embedded policy and teacher come to be: documents from the town, a tokenizer, plain training."""
