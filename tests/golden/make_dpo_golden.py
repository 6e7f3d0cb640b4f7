"""Makes the golden values of learning preferences: DPO as its paper writes it (Rafailov et al. 2023), by PyTorch's autograd.

Not part of the build. The file that it writes is checked in; run it again by hand, only to change what is compared:

    python3 -m venv venv && venv/bin/pip install torch transformers h5py peft
    venv/bin/python tests/golden/make_dpo_golden.py       # writes tests/golden/dpo.h5

It stands on make_lora_golden.py: models, batches, masks and initial adapters are those of lora_NAME.h5. The two documents of
a row are a pair, the first one chosen; rows of one document are none. The Llama learns adapters beside its frozen weights,
the reference being the model without them; the GPT-2 learns all weights, the reference being what it was. dpo.h5 has, for each,

    NAME/reference        float64 [BATCHES, ROWS, 2], log probabilities of a row's documents under the reference
    NAME/losses, gradient_norms, reward_chosen, reward_rejected, reward_accuracy    float64 [12], of each step, before its update

with beta 0.1 and label smoothing 0.05. The steps are AdamW as in make_lora_golden.py, of the GPT-2 with learning rate 1e-3.
"""

import pathlib

import h5py
import numpy
import torch
import transformers

import make_lora_golden as lora
from make_golden import BATCHES, ROWS, attention, compute_in_float64, configurations, initialise, losses_of

STEPS, BETA, SMOOTHING = 12, 0.1, 0.05
MEASURES = ("losses", "gradient_norms", "reward_chosen", "reward_rejected", "reward_accuracy")


def log_probabilities(model, batch):
    """[ROWS, 2], of the documents of each row, and which rows are pairs."""
    starts = batch[2]
    losses = losses_of(model, batch, None)[1]
    first = torch.tensor(starts == 0)
    return (torch.stack([-(losses * first).sum(1), -(losses * ~first).sum(1)], 1),
            torch.tensor([len(set(row)) == 2 for row in starts]))


def step(model, learned, batch, reference):
    found, pairs = log_probabilities(model, batch)
    rewards = BETA * (found - reference)[pairs]
    margin = rewards[:, 0] - rewards[:, 1]
    logsigmoid = torch.nn.functional.logsigmoid
    loss = (-(1 - SMOOTHING) * logsigmoid(margin) - SMOOTHING * logsigmoid(-margin)).mean()
    loss.backward()
    norm = torch.sqrt(sum((parameter.grad**2).sum() for parameter in learned))
    return [value.item() for value in (loss, norm, rewards[:, 0].mean(), rewards[:, 1].mean(), (margin > 0).double().mean())]


def train(model, batches, references, learning_rate):
    learned = [parameter for parameter in model.parameters() if parameter.requires_grad]
    optimizer = torch.optim.AdamW(learned, lr=learning_rate, betas=(0.9, 0.95), eps=1e-8, weight_decay=0.0)
    curve = []
    for number in range(STEPS):
        optimizer.zero_grad()
        curve.append(step(model, learned, [array[number % BATCHES] for array in batches], references[number % BATCHES]))
        for parameter in learned:
            parameter.grad *= min(1.0, lora.CLIP / curve[-1][1])
        optimizer.step()
    return numpy.array(curve)


def make(name, file, adapted):
    configuration = configurations()[name]
    model = transformers.AutoModelForCausalLM.from_config(configuration, attn_implementation="float64").double().train()
    compute_in_float64(model)
    initialise(model)
    batches = lora.masked_batches()
    with torch.no_grad():
        references = [log_probabilities(model, [array[number] for array in batches])[0] for number in range(BATCHES)]
    if adapted:
        model = lora.adapted(model, name)
    curve = train(model, batches, references, lora.LEARNING_RATE if adapted else 1e-3)
    file[f"{name}/reference"] = torch.stack(references).numpy()
    for index, measure in enumerate(MEASURES):
        file[f"{name}/{measure}"] = curve[:, index]
    print(f"{name}: loss {curve[0, 0]:.6f} -> {curve[-1, 0]:.6f}, accuracy {curve[0, 4]:.2f} -> {curve[-1, 4]:.2f}")


def main():
    torch.set_num_threads(1)
    transformers.AttentionInterface.register("float64", attention)
    with h5py.File(pathlib.Path(__file__).parent / "dpo.h5", "w") as file:
        make("llama", file, True)
        make("gpt2", file, False)


if __name__ == "__main__":
    main()
