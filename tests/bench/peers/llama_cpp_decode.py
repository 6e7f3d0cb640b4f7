"""A prompt and an answer by llama.cpp on the CPU; prints processor seconds a token of each, as JSON.

  llama_cpp_decode.py --gguf FILE --prompt-tokens N --answer-tokens N --threads N

Needs llama-cpp-python.
"""
import argparse
import json
import time

import llama_cpp

parser = argparse.ArgumentParser()
parser.add_argument("--gguf", required=True)
parser.add_argument("--prompt-tokens", type=int, default=512)
parser.add_argument("--answer-tokens", type=int, default=64)
parser.add_argument("--threads", type=int, default=1)
options = parser.parse_args()

model = llama_cpp.Llama(options.gguf, n_ctx=options.prompt_tokens + options.answer_tokens + 8, n_batch=512,
                        n_threads=options.threads, n_threads_batch=options.threads, verbose=False)
tokens = [100 + 31 * index % 9000 for index in range(options.prompt_tokens)]
model.eval(tokens)  # what is touched for the first time
model.reset()
times = [time.process_time()]
model.eval(tokens)
times.append(time.process_time())
for token in tokens[:options.answer_tokens]:
    model.eval([token])
times.append(time.process_time())
print(json.dumps({"prompt": (times[1] - times[0]) / options.prompt_tokens,
                  "answer": (times[2] - times[1]) / options.answer_tokens}))
