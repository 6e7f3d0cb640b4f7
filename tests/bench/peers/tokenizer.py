"""Training and encoding speed of tiktoken and rustbpe: the peers of `tokenize`. Prints one JSON line.

  tokenizer.py encode TOKENIZER_JSON TEXT     tiktoken, with the vocabulary of our tokenizer.json, in MB per CPU second
  tokenizer.py train TEXT VOCABULARY          rustbpe, in MB per CPU second
"""
import json
import sys
import time

PATTERN = (r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*"
           r"|\s*[\r\n]+|\s+(?!\S)|\s+")


def byte_of_letter():
    """The table of byte-level BPE: each byte has a printable letter."""
    plain = [*range(33, 127), *range(161, 173), *range(174, 256)]
    letters = {chr(b): b for b in plain}
    letters.update({chr(256 + i): b for i, b in enumerate(b for b in range(256) if b not in plain)})
    return letters


def encode(tokenizer, path):
    import tiktoken
    letters = byte_of_letter()
    model = json.load(open(tokenizer))["model"]
    ranks = {bytes(letters[c] for c in token): rank for token, rank in model["vocab"].items()
             if all(c in letters for c in token)}
    ranks = {token: i for i, (token, _) in enumerate(sorted(ranks.items(), key=lambda item: item[1]))}
    encoding = tiktoken.Encoding("ours", pat_str=PATTERN, mergeable_ranks=ranks, special_tokens={})
    text = open(path, encoding="utf-8").read()
    start = time.process_time()
    encoding.encode_ordinary(text)
    return len(text.encode()) / 1e6 / (time.process_time() - start)


def train(path, vocabulary):
    import rustbpe
    text = open(path, encoding="utf-8").read()
    start = time.process_time()
    rustbpe.Tokenizer().train_from_iterator(iter(text.split("\n\n")), vocabulary, pattern=PATTERN)
    return len(text.encode()) / 1e6 / (time.process_time() - start)


rate = encode(sys.argv[2], sys.argv[3]) if sys.argv[1] == "encode" else train(sys.argv[2], int(sys.argv[3]))
print(json.dumps({"mb_per_cpu_second": rate}))
