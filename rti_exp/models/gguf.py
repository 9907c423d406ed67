"""`python -m rti_exp.models.gguf FILE.gguf FOLDER`: a GGUF model as a transformers folder with float32 safetensors."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any


def convert(weights: Path, folder: Path) -> None:
    """Needs `gguf` and `accelerate`."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer, GgufConfig

    where = {"pretrained_model_name_or_path": str(weights.parent), "gguf_file": weights.name, "local_files_only": True}
    tokenizer = AutoTokenizer.from_pretrained(**where)
    model: Any = AutoModelForCausalLM.from_pretrained(
        **where, dtype=torch.float32, quantization_config=GgufConfig(dequantize=True)
    )
    # It is a plain model by now; else it would be saved as a quantized one.
    model.hf_quantizer = None
    model.is_quantized = False
    if hasattr(model.config, "quantization_config"):
        del model.config.quantization_config
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


if __name__ == "__main__":
    convert(Path(sys.argv[1]).resolve(), Path(sys.argv[2]))
