"""Makes the golden values: what PyTorch and transformers compute for five tiny models, which ours must equal.

Not part of the build. The files that it writes are checked in; run it again by hand, only to add a model or a value:

    python3 -m venv venv && venv/bin/pip install torch transformers h5py
    venv/bin/python tests/golden/make_golden.py            # writes tests/golden/*.h5

The seeds are fixed and everything is computed in float64 on one thread, the parts of transformers that insist on
float32 (norms, rotary angles, softmax) being replaced; so a second run gives the same numbers to the last digits.

A file NAME.h5 holds, for one model:

    configuration        text, the config.json as transformers reads it
    parameters/NAME      float32, the initial values, under our logical names; all linear weights are [outputs, inputs]
    tokens               int32 [4, 2, 24]: a cycle of four batches of two rows, two documents packed in each row
    targets              int32, as tokens: the next token of the same document, -1 where there is none
    document_start       int32, as tokens: index in the row where the token's document begins
    positions            int32, as tokens: index in the document
    logits               float64 [2, 24, 97], of the first batch, as initialised
    losses               float64 [2, 24], of the first batch; 0 where the target is -1
    loss                 float64 scalar, the mean of the losses over the tokens that have a target
    gradients/NAME       float64, of that mean by each parameter
    bfloat16_error       float64 scalar, the largest |g - gradient| / |gradient| (Euclidean norms) among the gradients g
                         that PyTorch itself gives in bfloat16
    float16_error        float64 scalar, the same in float16, with a loss scale of 1024
    curve                float64 [20], the mean loss of each of 20 steps, before the step's update
    curve_gradient_norms float64 [20], the global norm of the gradient of each step, before clipping
    final/NAME           float32, the parameters after the 20 steps

A parameter's name is one dataset, with dots: parameters/layers.0.attention.qkv.weight.
The steps are AdamW with learning rate 1e-3, betas 0.9 and 0.95, epsilon 1e-8, weight decay 0.1 on all tensors of two
axes and none on the others, after clipping the gradient to a global norm of 1; step i trains on batch i mod 4.
"""

import json
import pathlib

import h5py
import numpy
import torch
import transformers

BATCHES, ROWS, TIME, VOCABULARY = 4, 2, 24, 97
STEPS, LEARNING_RATE, BETAS, EPSILON, WEIGHT_DECAY, CLIP = 20, 1e-3, (0.9, 0.95), 1e-8, 0.1, 1.0
# Where the second document of each row begins; one of the documents has a single token.
BOUNDARIES = [[10, 17], [1, 12], [23, 8], [5, 20]]

SMALL = dict(vocab_size=VOCABULARY, hidden_size=48, num_hidden_layers=2, max_position_embeddings=64,
             initializer_range=0.15, attention_dropout=0.0, hidden_act="silu", bos_token_id=None, eos_token_id=None,
             pad_token_id=None)


def configurations():
    """The five models: name -> configuration of transformers."""
    return {
        "gpt2": transformers.GPT2Config(
            vocab_size=VOCABULARY, n_embd=48, n_layer=2, n_head=4, n_positions=64, activation_function="gelu_new",
            resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0, initializer_range=0.15, layer_norm_epsilon=1e-5,
            bos_token_id=None, eos_token_id=None, pad_token_id=None, tie_word_embeddings=True),
        "llama": transformers.LlamaConfig(
            **SMALL, intermediate_size=112, num_attention_heads=6, num_key_value_heads=2, head_dim=8,
            rms_norm_eps=1e-5, tie_word_embeddings=False),
        "qwen3": transformers.Qwen3Config(
            **SMALL, intermediate_size=112, num_attention_heads=4, num_key_value_heads=2, head_dim=16,
            rms_norm_eps=1e-6, tie_word_embeddings=True, use_sliding_window=False),
        "qwen2": transformers.Qwen2Config(
            **SMALL, intermediate_size=112, num_attention_heads=6, num_key_value_heads=2,
            rms_norm_eps=1e-6, tie_word_embeddings=False, use_sliding_window=False),
        "mistral": transformers.MistralConfig(
            **SMALL, intermediate_size=112, num_attention_heads=6, num_key_value_heads=3, head_dim=8,
            rms_norm_eps=1e-5, tie_word_embeddings=False, sliding_window=5),
    }


def configuration_text(configuration, model):
    """config.json as it comes with published models: what describes the model, without transformers' own switches."""
    switches = transformers.PreTrainedConfig().to_dict().keys() - {"tie_word_embeddings"} | {"add_cross_attention"}
    described = {name: value for name, value in configuration.to_dict().items()
                 if name == "model_type" or (name not in switches and not name.startswith("_"))}
    return json.dumps({"architectures": [type(model).__name__], **described}, indent=1)


def packed_batches():
    """Tokens and, per token, its target, its document's start and its position: arrays [BATCHES, ROWS, TIME]."""
    shape = (BATCHES, ROWS, TIME)
    tokens = numpy.random.default_rng(5).integers(0, VOCABULARY, shape).astype(numpy.int32)
    targets = numpy.full(shape, -1, numpy.int32)
    starts = numpy.zeros(shape, numpy.int32)
    for batch in range(BATCHES):
        for row in range(ROWS):
            boundary = BOUNDARIES[batch][row]
            starts[batch, row, boundary:] = boundary
            for time in range(TIME - 1):
                if starts[batch, row, time] == starts[batch, row, time + 1]:
                    targets[batch, row, time] = tokens[batch, row, time + 1]
    positions = numpy.arange(TIME, dtype=numpy.int32) - starts
    return tokens, targets, starts, positions


def attention_mask(starts, window):
    """float64 [ROWS, 1, TIME, TIME], added to the scores: what a query sees of its document, up to itself."""
    query = torch.arange(TIME)[None, :, None]
    key = torch.arange(TIME)[None, None, :]
    visible = (key <= query) & (key >= torch.tensor(starts)[:, :, None])
    if window:
        visible &= key > query - window
    return torch.zeros(visible.shape, dtype=torch.float64).masked_fill(~visible, -torch.inf)[:, None]


def attention(module, query, key, value, attention_mask, scaling=None, **ignored):
    """As transformers' eager attention, whose softmax is float32 for some models."""
    groups = query.shape[1] // key.shape[1]
    key, value = key.repeat_interleave(groups, dim=1), value.repeat_interleave(groups, dim=1)
    scores = query @ key.transpose(2, 3) * (query.shape[-1] ** -0.5 if scaling is None else scaling) + attention_mask
    weights = scores.softmax(dim=-1)
    return (weights @ value).transpose(1, 2).contiguous(), weights


def compute_in_float64(model):
    """Replaces what transformers computes in float32 whatever the type of the model: RMS norms and rotary angles."""
    def norm(module):
        epsilon = module.variance_epsilon
        return lambda x: module.weight * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + epsilon))

    def rotary(configuration):
        size = getattr(configuration, "head_dim", None)
        size = size or configuration.hidden_size // configuration.num_attention_heads
        theta = configuration.rope_parameters["rope_theta"]
        frequencies = theta ** (-torch.arange(0, size, 2, dtype=torch.float64) / size)

        def cosine_and_sine(x, position_ids):
            angles = position_ids[..., None].double() * frequencies
            angles = torch.cat((angles, angles), dim=-1)
            return angles.cos(), angles.sin()
        return cosine_and_sine

    for module in model.modules():
        if type(module).__name__.endswith("RMSNorm"):
            module.forward = norm(module)
        if type(module).__name__.endswith("RotaryEmbedding"):
            module.forward = rotary(model.config)


def losses_of(model, batch, window):
    """Logits, and the loss of each token (0 without a target), of one packed batch."""
    tokens, targets, starts, positions = batch
    mask = attention_mask(starts, window).to(model.dtype)
    logits = model(input_ids=torch.tensor(tokens, dtype=torch.long),
                   position_ids=torch.tensor(positions, dtype=torch.long),
                   attention_mask=mask, use_cache=False).logits
    losses = torch.nn.functional.cross_entropy(logits.double().reshape(-1, VOCABULARY),
                                               torch.tensor(targets, dtype=torch.long).reshape(-1),
                                               ignore_index=-1, reduction="none").reshape(ROWS, TIME)
    return logits, losses


def largest_error(dtype, model, configuration, batch, window, loss_scale=1.0):
    """How far PyTorch's gradients are from the model's with weights, activations and gradients in a 16-bit type."""
    low = transformers.AutoModelForCausalLM.from_config(configuration, attn_implementation="float64").train()
    low.load_state_dict(model.state_dict())
    low = low.to(dtype)
    (mean_loss(losses_of(low, batch, window)[1], batch[1]) * loss_scale).backward()
    rounded = logical(low, lambda parameter: parameter.grad.double() / loss_scale)
    exact = logical(model, lambda parameter: parameter.grad)
    return max(((rounded[name] - gradient).norm() / gradient.norm()).item() for name, gradient in exact.items())


def mean_loss(losses, targets):
    return losses.sum() / int((targets >= 0).sum())


def joined(tensors):
    return torch.cat(list(tensors), dim=0)


def logical(model, of):
    """Our names and layouts -> the tensors that `of` gives for the parameters of transformers (values or gradients)."""
    named = {name: of(parameter) for name, parameter in model.named_parameters()}
    return logical_gpt2(named) if "transformer.wte.weight" in named else logical_llama(named, model.config)


def logical_gpt2(named):
    result = {"embedding.weight": named["transformer.wte.weight"],
              "embedding.position_weight": named["transformer.wpe.weight"],
              "final_norm.weight": named["transformer.ln_f.weight"],
              "final_norm.bias": named["transformer.ln_f.bias"]}
    parts = {"attention_norm": "ln_1", "attention.qkv": "attn.c_attn", "attention.output": "attn.c_proj",
             "mlp_norm": "ln_2", "mlp.up": "mlp.c_fc", "mlp.down": "mlp.c_proj"}
    for layer in range(2):
        for ours, theirs in parts.items():
            weight = named[f"transformer.h.{layer}.{theirs}.weight"]
            # Their Conv1D holds [inputs, outputs].
            result[f"layers.{layer}.{ours}.weight"] = weight.T if weight.ndim == 2 else weight
            result[f"layers.{layer}.{ours}.bias"] = named[f"transformer.h.{layer}.{theirs}.bias"]
    return result


def logical_llama(named, configuration):
    result = {"embedding.weight": named["model.embed_tokens.weight"], "final_norm.weight": named["model.norm.weight"]}
    if not configuration.tie_word_embeddings:
        result["head.weight"] = named["lm_head.weight"]
    for layer in range(configuration.num_hidden_layers):
        theirs, ours = f"model.layers.{layer}", f"layers.{layer}"
        result[f"{ours}.attention_norm.weight"] = named[f"{theirs}.input_layernorm.weight"]
        result[f"{ours}.mlp_norm.weight"] = named[f"{theirs}.post_attention_layernorm.weight"]
        for kind in ("weight", "bias"):
            if f"{theirs}.self_attn.q_proj.{kind}" in named:
                result[f"{ours}.attention.qkv.{kind}"] = joined(
                    named[f"{theirs}.self_attn.{part}_proj.{kind}"] for part in "qkv")
        for part, name in (("query", "q_norm"), ("key", "k_norm")):
            if f"{theirs}.self_attn.{name}.weight" in named:
                result[f"{ours}.attention.{part}_norm.weight"] = named[f"{theirs}.self_attn.{name}.weight"]
        result[f"{ours}.attention.output.weight"] = named[f"{theirs}.self_attn.o_proj.weight"]
        result[f"{ours}.mlp.gate_up.weight"] = joined(named[f"{theirs}.mlp.{part}_proj.weight"]
                                                      for part in ("gate", "up"))
        result[f"{ours}.mlp.down.weight"] = named[f"{theirs}.mlp.down_proj.weight"]
    return result


def initialise(model):
    """Random norms and biases too, so that none of them is invisible; values that float32 holds exactly."""
    generator = torch.Generator().manual_seed(7)
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator, dtype=torch.float64)
        if parameter.ndim == 1:
            centre = 1.0 if name.endswith("weight") else 0.0
            parameter.data = centre + 0.1 * noise
        else:
            parameter.data = 0.15 * noise
        parameter.data = parameter.data.float().double()


def train(model, batches, window):
    """The losses and gradient norms of the steps."""
    matrices = [parameter for parameter in model.parameters() if parameter.ndim >= 2]
    others = [parameter for parameter in model.parameters() if parameter.ndim < 2]
    groups = [dict(params=matrices, weight_decay=WEIGHT_DECAY), dict(params=others, weight_decay=0.0)]
    optimizer = torch.optim.AdamW(groups, lr=LEARNING_RATE, betas=BETAS, eps=EPSILON)
    curve, norms = [], []
    for step in range(STEPS):
        batch = [array[step % BATCHES] for array in batches]
        optimizer.zero_grad()
        loss = mean_loss(losses_of(model, batch, window)[1], batch[1])
        loss.backward()
        # By hand, for torch adds 1e-6 to the norm that it divides by.
        norm = torch.sqrt(sum((parameter.grad**2).sum() for parameter in model.parameters()))
        for parameter in model.parameters():
            parameter.grad *= min(1.0, CLIP / norm.item())
        optimizer.step()
        curve.append(loss.item())
        norms.append(norm.item())
    return curve, norms


def write_tensors(file, group, tensors, dtype):
    for name, tensor in sorted(tensors.items()):
        file[f"{group}/{name}"] = tensor.detach().contiguous().numpy().astype(dtype)


def make(name, configuration, folder):
    model = transformers.AutoModelForCausalLM.from_config(configuration, attn_implementation="float64").double().train()
    compute_in_float64(model)
    initialise(model)
    window = getattr(configuration, "sliding_window", None)
    batches = packed_batches()
    first = [array[0] for array in batches]

    logits, losses = losses_of(model, first, window)
    loss = mean_loss(losses, first[1])
    loss.backward()
    with h5py.File(folder / f"{name}.h5", "w") as file:
        file["configuration"] = numpy.bytes_(configuration_text(configuration, model))
        write_tensors(file, "parameters", logical(model, lambda parameter: parameter.data), numpy.float32)
        write_tensors(file, "gradients", logical(model, lambda parameter: parameter.grad), numpy.float64)
        file["bfloat16_error"] = largest_error(torch.bfloat16, model, configuration, first, window)
        file["float16_error"] = largest_error(torch.float16, model, configuration, first, window, 1024.0)
        for dataset, array in zip(("tokens", "targets", "document_start", "positions"), batches):
            file[dataset] = array
        file["logits"], file["losses"] = logits.detach().numpy(), losses.detach().numpy()
        file["loss"] = loss.item()
        file["curve"], file["curve_gradient_norms"] = train(model, batches, window)
        write_tensors(file, "final", logical(model, lambda parameter: parameter.data), numpy.float32)
        print(f"{configuration.model_type}: loss {loss.item():.6f} -> {file['curve'][-1]:.6f}, {len(file['parameters'])} parameters")


def main():
    torch.set_num_threads(1)
    transformers.AttentionInterface.register("float64", attention)
    for name, configuration in configurations().items():
        make(name, configuration, pathlib.Path(__file__).parent)


if __name__ == "__main__":
    main()
