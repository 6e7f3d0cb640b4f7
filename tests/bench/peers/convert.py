"""What transformers and llama.cpp make of a model, for convert.sh.

    convert.py folder MODEL.gguf FOLDER             dequantises it into a Hugging Face folder, by transformers
    convert.py logits FOLDER TEXT TOKENS OUT.h5     logits after each token of the text's beginning, by transformers in float32
    convert.py llama MODEL.gguf IN.h5 OUT.h5        the same of the tokens in IN.h5, by llama.cpp with a float32 cache
    convert.py chat MODEL.gguf QUESTION...          llama.cpp's likeliest answers, with a float32 cache too
"""

import pathlib
import sys

import h5py
import numpy


def store(path, tokens, logits):
    with h5py.File(path, "w") as file:
        file["tokens"] = numpy.asarray(tokens, numpy.int32)
        file["logits"] = numpy.asarray(logits, numpy.float32)


def folder(model, target):
    import torch
    import transformers
    path = pathlib.Path(model)
    read = dict(gguf_file=path.name)
    quantised = transformers.AutoModelForCausalLM.from_pretrained(path.parent, dtype=torch.float32, **read)
    if hasattr(quantised.config, "quantization_config"):
        del quantised.config.quantization_config
    # A model that came from blocks refuses to be saved; one of the same weights does not.
    plain = transformers.AutoModelForCausalLM.from_config(quantised.config, dtype=torch.float32)
    plain.load_state_dict(quantised.state_dict())
    plain.generation_config = quantised.generation_config
    plain.save_pretrained(target)
    transformers.AutoTokenizer.from_pretrained(path.parent, **read).save_pretrained(target)


def logits(model, text, count, target):
    import tokenizers
    import torch
    import transformers
    torch.set_num_threads(2)
    tokenizer = tokenizers.Tokenizer.from_file(str(pathlib.Path(model) / "tokenizer.json"))
    tokens = tokenizer.encode(pathlib.Path(text).read_text(encoding="utf-8"), add_special_tokens=False).ids[:int(count)]
    network = transformers.AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    with torch.no_grad():
        store(target, tokens, network(torch.tensor([tokens])).logits[0].numpy())


def llama(model, source, target):
    import llama_cpp
    with h5py.File(source) as file:
        tokens = file["tokens"][()].tolist()
    network = llama_cpp.Llama(model, n_ctx=len(tokens), n_batch=512, n_threads=2, logits_all=True, verbose=False,
                              type_k=llama_cpp.GGML_TYPE_F32, type_v=llama_cpp.GGML_TYPE_F32, flash_attn=False)
    network.eval(tokens)
    store(target, tokens, network.scores[:len(tokens)])


def chat(model, *questions):
    import llama_cpp
    network = llama_cpp.Llama(model, n_ctx=512, n_threads=2, verbose=False, type_k=llama_cpp.GGML_TYPE_F32,
                              type_v=llama_cpp.GGML_TYPE_F32, flash_attn=False)
    for question in questions:
        answer = network.create_chat_completion([{"role": "user", "content": question}], temperature=0, max_tokens=40)
        print(f"> {question}\n{answer['choices'][0]['message']['content'].strip()}")


{"folder": folder, "logits": logits, "llama": llama, "chat": chat}[sys.argv[1]](*sys.argv[2:])
