"""Makes the golden values of finetuning with adapters: what PEFT's LoRA and DoRA and PyTorch's AdamW make of two tiny
models.

Not part of the build. The files that it writes are checked in; run it again by hand, only to change what is compared:

    python3 -m venv venv && venv/bin/pip install torch transformers h5py peft
    venv/bin/python tests/golden/make_lora_golden.py       # writes tests/golden/lora_*.h5, dora_*.h5

It stands on make_golden.py: the same models in float64, the same packed batches. Targets are masked as in finetuning on
answers: the first half of each document is no target, but the last token of every document with two tokens or more is.

A file lora_NAME.h5 or dora_NAME.h5 holds configuration, parameters/NAME, tokens, targets, document_start and positions as there, and

    adapters/NAME        float32, the initial adapters under our names; B is not zero, so that A matters at once
    rank, alpha          float64 scalars
    curve                float64 [20], the mean loss of each of 20 steps, before the step's update
    curve_gradient_norms float64 [20]
    final/NAME           float32, the adapters after the 20 steps

Of DoRA's magnitude vector our NAME.lora_m is what it has above the lengths of the rows of the frozen weight.

The steps are AdamW with learning rate 5e-3, betas 0.9 and 0.95, epsilon 1e-8 and no weight decay, after clipping the
gradient to a global norm of 1. GPT-2 has adapters at all linears (its queries, keys and values are one in PEFT too), the
Llama at the output of the attention and the last linear of the MLP, which are one linear in PEFT and in ours.
"""

import pathlib

import h5py
import numpy
import peft
import torch
import transformers

from make_golden import (BATCHES, ROWS, TIME, attention, compute_in_float64, configuration_text, configurations,
                         initialise, logical, losses_of, mean_loss, packed_batches, write_tensors)

STEPS, LEARNING_RATE, RANK, ALPHA, CLIP = 20, 5e-3, 4, 6.0, 1.0
TARGETS = {
    "gpt2": {"attn.c_attn": "attention.qkv", "attn.c_proj": "attention.output", "mlp.c_fc": "mlp.up",
             "mlp.c_proj": "mlp.down"},
    "llama": {"self_attn.o_proj": "attention.output", "mlp.down_proj": "mlp.down"},
}


def masked_batches():
    tokens, targets, starts, positions = packed_batches()
    for batch in range(BATCHES):
        for row in range(ROWS):
            for start in sorted(set(starts[batch, row])):
                places = numpy.flatnonzero(starts[batch, row] == start)
                targets[batch, row, places[:max(0, len(places) - 1) // 2]] = -1
    return tokens, targets, starts, positions


def lengths(model, magnitude):
    """The lengths of the rows of the frozen weight whose lengths a magnitude vector gives."""
    module = model.get_submodule(magnitude[:magnitude.index(".lora_magnitude_vector")]).get_base_layer()
    return torch.linalg.norm(module.weight.data, dim=0 if isinstance(module, transformers.Conv1D) else 1)


def adapters(model, targets):
    """Our names -> the adapters of PEFT."""
    result = {}
    for name, parameter in model.named_parameters():
        value, which = parameter.data, "a" if "lora_A" in name else "b"
        if "lora_magnitude_vector" in name:
            value, which = value - lengths(model, name), "m"
        for theirs, ours in targets.items():
            if f".{theirs}.lora_" not in name:
                continue
            layer = int(name.split(".h." if ".h." in name else ".layers.")[1].split(".")[0])
            result[f"layers.{layer}.{ours}.lora_{which}"] = value
    return result


def adapted(model, name, decomposed):
    """The model with adapters that are not zero, of which nothing but these is trained."""
    result = peft.get_peft_model(model, peft.LoraConfig(
        r=RANK, lora_alpha=ALPHA, lora_dropout=0.0, target_modules=list(TARGETS[name]), task_type="CAUSAL_LM",
        fan_in_fan_out=name == "gpt2", use_dora=decomposed)).double()
    generator = torch.Generator().manual_seed(11)
    for each, parameter in result.named_parameters():
        if parameter.requires_grad:
            noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
            parameter.data = (0.1 * noise).float().double()
            if "lora_magnitude_vector" in each:
                parameter.data += lengths(result, each)
    return result


def train(model, batches):
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=LEARNING_RATE, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    curve, norms = [], []
    for step in range(STEPS):
        batch = [array[step % BATCHES] for array in batches]
        optimizer.zero_grad()
        loss = mean_loss(losses_of(model, batch, None)[1], batch[1])
        loss.backward()
        norm = torch.sqrt(sum((parameter.grad**2).sum() for parameter in learned))
        for parameter in learned:
            parameter.grad *= min(1.0, CLIP / norm.item())
        optimizer.step()
        curve.append(loss.item())
        norms.append(norm.item())
    return curve, norms


def make(name, folder, decomposed):
    configuration = configurations()[name]
    model = transformers.AutoModelForCausalLM.from_config(configuration, attn_implementation="float64").double().train()
    compute_in_float64(model)
    initialise(model)
    batches = masked_batches()
    kind = "dora" if decomposed else "lora"
    with h5py.File(folder / f"{kind}_{name}.h5", "w") as file:
        file["configuration"] = numpy.bytes_(configuration_text(configuration, model))
        write_tensors(file, "parameters", logical(model, lambda parameter: parameter.data), numpy.float32)
        adapted_model = adapted(model, name, decomposed)
        write_tensors(file, "adapters", adapters(adapted_model, TARGETS[name]), numpy.float32)
        for dataset, array in zip(("tokens", "targets", "document_start", "positions"), batches):
            file[dataset] = array
        file["rank"], file["alpha"] = float(RANK), ALPHA
        file["curve"], file["curve_gradient_norms"] = train(adapted_model, batches)
        write_tensors(file, "final", adapters(adapted_model, TARGETS[name]), numpy.float32)
        print(f"{kind} {name}: loss {file['curve'][0]:.6f} -> {file['curve'][-1]:.6f}, {len(file['adapters'])} adapters")


def main():
    torch.set_num_threads(1)
    transformers.AttentionInterface.register("float64", attention)
    for name in TARGETS:
        for decomposed in (False, True):
            make(name, pathlib.Path(__file__).parent, decomposed)


if __name__ == "__main__":
    main()
