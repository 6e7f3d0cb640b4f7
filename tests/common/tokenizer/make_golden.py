#!/usr/bin/env python3
"""Writes golden.json: what tiktoken, Hugging Face tokenizers and the `regex` package make of nasty texts.

    pip install regex tiktoken tokenizers
    make_golden.py golden.json

The tests read the file alone; this program is run again only when a case is added. Characters that Python's Unicode
tables do not know are left out, so that the answers do not depend on the engines' Unicode versions.
"""
import json, random, sys, unicodedata
import regex, tiktoken
from tokenizers import Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

CONTRACTION = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
CASED = (r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+(?i:'s|'t|'re|'ve|'m|'ll|'d)?"
         r"|[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*(?i:'s|'t|'re|'ve|'m|'ll|'d)?")
TAIL = r"| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PATTERNS = {  # as published; cl100k and gpt2 as tiktoken has them
    "gpt2": r"'(?:[sdmt]|ll|ve|re)| ?\p{L}++| ?\p{N}++| ?[^\s\p{L}\p{N}]++|\s++$|\s+(?!\S)|\s",
    "cl100k": r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$"
              r"|\s*[\r\n]|\s+(?!\S)|\s",
    "o200k": CASED + r"|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n/]*|\s*[\r\n]+|\s+(?!\S)|\s+",
    "llama3": CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}" + TAIL,
    "qwen2": CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}" + TAIL,
}

NASTY = [
    "", " ", "  ", "a", " a", "  a", "a ", "a  ", "a  b", "\n", "\n\n", " \n", "\n ", "a\n  ", "a\n  b", "a \n b", "\r\n\r\n  x",
    "   \n\n   \t x", "\t\tx = 1;\n\t}\n", "x\u00a0\u00a0y", "\u3000\u3000\u4e2d", "a\u2028b\u0085c", "\u001c\u001d x",
    "I'm you're he's we've they'll I'd don't", "I'M YOU'RE HE'S WE'VE THEY'LL I'D DON'T", "'stuff 'llama 've 'RE' ''s 's's",
    "it\u2019s a\u017f'\u017f '\u017ft O'\u017f \u212a'\u212a", "1 12 123 1234 12345 1,234.56 \u0661\u0662\u0663\u0664 \u00bd\u00b2\u2167 3x33",
    "HelloWorld HELLOWorld helloWORLD ABCdefGHI XMLHttpRequest iPhone eBay McDonald's IT'S ABC'S abc'DEF",
    "\u01c5ungla \u01c5\u01c5 A\u02b0B \u02b0 a\u0301b\u0301C\u0301D \u0301\u0301 \u0301A\u0301 \u0301ABC x\u0301'S \u0301's \u0301'x",
    "\u4e2d\u6587ABC\u4e2dABCabc \u4e2d\u6587'll A\u4e2dB\u4e2d AB\u4e2dCD! \u4e2dA",
    "!!!???...\n\n// comment /* x */\n//\n/\n<|endoftext|> <|im_start|> a//b\r\n!/\n/!", " !a !1 ! \n", "$1 $a #\u0301 -\u0301a",
    "\U0001f600\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f\U0001f1e9\U0001f1ea", "\u0928\u092e\u0938\u094d\u0924\u0947 \u0e44\u0e17\u0e22 "
    "\ud55c\uad6d\uc5b4 \u05e2\u05d1\u05e8\u05d9\u05ea \u0627\u0644\u0639\u0631\u0628\u064a\u0629 \u03b1\u03b2\u0393 \u10d0\u10d1 \u1c90",
    "the theme of the thesis there", "aaaaaaaaaaaaaaaaa aaaa aaaaaaaab", "-" * 70, " " * 70 + "x", "ab" * 60, "9" * 40, "\n" * 9 + " " * 9,
]


def fuzz(rnd, by_category, count):
    common = list(" \n\r\t'sStTdDmMlLvVrReE/19,.!\u4e2d\u0621\u0301\u017fK\u00e9\u00c9\u01c5\u02b0\u00a0\u3000\u0085")
    clusters = ["'s", "'LL", "'re", "  ", "\n\n", "\u017f", "'\u017f", "\r\n", " '", "th", "he ", "The"]
    out = []
    for _ in range(count):
        kind = rnd.random()
        if kind < 0.6:
            out.append(rnd.choice(common))
        elif kind < 0.8:
            out.append(rnd.choice(clusters))
        else:
            out.append(rnd.choice(by_category[rnd.choice(sorted(by_category))]))
    return "".join(out)


def texts():
    rnd, by_category = random.Random(3), {}
    for point in range(0x110000):
        category = unicodedata.category(chr(point))
        if category not in ("Cn", "Cs"):
            by_category.setdefault(category, []).append(chr(point))
    return NASTY + [fuzz(rnd, by_category, rnd.randint(2, 9)) for _ in range(150)] + [
        fuzz(rnd, by_category, 400) for _ in range(6)]


def split(pattern, text):
    # In `regex`, $ also matches before a last newline, and {1,3}+ is no possessive range.
    engine = PATTERNS[pattern].replace("$", r"\Z").replace(r"\p{N}{1,3}+", r"(?>\p{N}{1,3})")
    return [len(word.encode()) for word in regex.findall(engine, text)]


def pre_tokenizer(pattern):
    if pattern == "gpt2":
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    # In the engine of tokenizers the end of the text is \z.
    engine = PATTERNS[pattern] if pattern != "cl100k" else (
        CONTRACTION + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s+\z|\s*[\r\n]+|\s+(?!\S)|\s+")
    return pre_tokenizers.Sequence([pre_tokenizers.Split(Regex(engine), "isolated"),
                                    pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def trained(pattern, corpus, normalizer=None):
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer, tokenizer.decoder = pre_tokenizer(pattern), decoders.ByteLevel()
    if normalizer:
        tokenizer.normalizer = normalizer
    tokenizer.train_from_iterator(corpus, trainers.BpeTrainer(
        vocab_size=460, show_progress=False, special_tokens=["<|endoftext|>"],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
    tokenizer.encode_special_tokens = True
    return tokenizer


def byte_of():
    printing = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [b for b in range(256) if b not in printing]
    return {chr(b): b for b in printing} | {chr(256 + i): b for i, b in enumerate(others)}


def odd_tokenizers():
    """Small tokenizers with shuffled merges, missing bytes, overlapping added tokens and all flags, and their answers."""
    rnd, result = random.Random(11), []
    for trial in range(10):
        letters = ["ab", "abc\u00e9\u4e2d ", "ab'1 \n\U0001f600e\u0301"][trial % 3]
        hf = Tokenizer(models.BPE())
        hf.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        corpus = ["".join(rnd.choice(letters) for _ in range(rnd.randint(1, 80))) for _ in range(60)]
        hf.train_from_iterator(corpus, trainers.BpeTrainer(
            vocab_size=rnd.randint(265, 310), show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()))
        definition = json.loads(hf.to_str())
        model, keys = definition["model"], list(definition["model"]["vocab"])
        merges = [merge.split(" ") if isinstance(merge, str) else merge for merge in model["merges"]]
        if trial % 2:
            rnd.shuffle(merges)
        if trial % 3 == 0:  # bytes go missing
            keys = [key for key in keys if not set(key) & {"q", "\u00e9"}]
            model["unk_token"], model["fuse_unk"] = keys[0], trial % 2 == 0
        model["merges"] = [[a, b] for a, b in merges if a in keys and b in keys and a + b in keys]
        model["vocab"] = {key: i for i, key in enumerate(keys)}
        model["ignore_merges"] = trial % 4 == 1
        definition["normalizer"] = {"type": "NFC"} if trial % 5 == 2 else None
        definition["decoder"] = None
        definition["added_tokens"], free = [], len(keys)
        for content in ["<|a|>", "ab", "<|a|>b", "\u00e9 b", "ba<"][: rnd.randint(1, 5)]:
            token_id = model["vocab"].get(content, free)
            free += token_id == free
            definition["added_tokens"].append(
                {"id": token_id, "content": content, "single_word": False, "lstrip": False, "rstrip": False,
                 "normalized": rnd.random() < 0.5, "special": rnd.random() < 0.6})
        if trial % 4 == 3:
            definition["pre_tokenizer"] = {"type": "Sequence", "pretokenizers": [
                {"type": "Digits", "individual_digits": True}, definition["pre_tokenizer"]]}
        hf = Tokenizer.from_str(json.dumps(definition))
        pieces = list(letters) * 6 + ["<|a|>", "<|a|>b", "\u00e9 b", "ba<", "ab", "q", "qq", "1", " 12", "'s", "<", "<|a"]
        text, ids = "".join(rnd.choice(pieces) for _ in range(500)), {}
        for name, as_text in (("plain", True), ("special", False)):
            hf.encode_special_tokens = as_text
            ids[name] = hf.encode(text, add_special_tokens=False).ids
        result.append({"tokenizer_json": json.dumps(definition), "text": text, "ids": ids})
    return result


def main():
    cases, alphabet = texts(), byte_of()
    corpus = cases + ["the quick brown fox jumps over the lazy dog's tail and they'll have the thesis there"] * 20
    result = {"texts": cases, "odd_tokenizers": odd_tokenizers(), "patterns": {}}
    for pattern in PATTERNS:
        hf = trained(pattern, corpus, normalizers.NFC() if pattern == "qwen2" else None)
        definition = json.loads(hf.to_str())
        special = [t["content"] for t in definition["added_tokens"]]
        tokens = [t for t, _ in sorted(definition["model"]["vocab"].items(), key=lambda item: item[1]) if t not in special]
        ranks = {bytes(alphabet[c] for c in token): rank for rank, token in enumerate(tokens)}
        tk = tiktoken.Encoding("golden", pat_str=PATTERNS[pattern], mergeable_ranks=ranks, special_tokens={})
        result["patterns"][pattern] = {
            "splits": [split(pattern, text) for text in cases],
            "tokenizer_json": hf.to_str(),
            "tokenizers_ids": [hf.encode(text).ids for text in cases],
            "tiktoken_tokens": tokens,
            "tiktoken_ids": [tk.encode_ordinary(text) for text in cases],
        }
    with open(sys.argv[1], "w") as sink:
        json.dump(result, sink, separators=(",", ":"))
        sink.write("\n")


if __name__ == "__main__":
    main()
