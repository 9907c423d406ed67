"""How the embedded policy and teacher are built: documents from the town, a tokenizer, supervised training."""
