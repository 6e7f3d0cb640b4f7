"""One training step of a GPT-2 or Llama-style model in PyTorch, as a user would write it: the peer of `pretrain`.

Reads the same model configuration; prints one JSON line with the tokens/s of each step and the peak resident memory.
"""
import argparse
import json
import resource
import time

import torch
import transformers

parser = argparse.ArgumentParser()
parser.add_argument("--model", required=True, help="config.json")
parser.add_argument("--batch", type=int, required=True)
parser.add_argument("--sequence-length", type=int, required=True)
parser.add_argument("--steps", type=int, default=4)
parser.add_argument("--threads", type=int, default=2)
parser.add_argument("--compile", action="store_true")
options = parser.parse_args()

torch.set_num_threads(options.threads)
torch.manual_seed(0)
fields = json.load(open(options.model))
without_dropout = {name: 0.0 for name in ("resid_pdrop", "embd_pdrop", "attn_pdrop", "attention_dropout")}
configuration = transformers.AutoConfig.for_model(**fields, **without_dropout)
model = transformers.AutoModelForCausalLM.from_config(configuration, attn_implementation="sdpa").train()
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-4, betas=(0.9, 0.95), weight_decay=0.1, fused=True)
forward = torch.compile(model) if options.compile else model
rates = []
for step in range(options.steps + 1):  # the first one warms up, and compiles
    start = time.perf_counter()
    tokens = torch.randint(0, configuration.vocab_size, (options.batch, options.sequence_length))
    loss = forward(input_ids=tokens, labels=tokens).loss
    loss.backward()
    torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
    optimizer.step()
    optimizer.zero_grad(set_to_none=True)
    loss.item()
    if step:
        rates.append(tokens.numel() / (time.perf_counter() - start))
print(json.dumps({"tokens_per_second": rates,
                  "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024}))
