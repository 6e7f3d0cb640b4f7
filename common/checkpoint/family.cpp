#include "common/checkpoint/family.h"

#include <map>

#include "common/base/error.h"
#include "common/model/transformer.h"

namespace tandem::checkpoint {
namespace {

using base::Shape;

// A name of ours taken apart: layers.3.attention.qkv.weight is of layer 3, its stem is attention.qkv.
struct OurName {
  std::string layer;  // empty outside the layers
  std::string stem;
  std::string ending;  // weight or bias
};

OurName takeApart(const std::string& name) {
  if (name == "embedding.position_weight") return {"", "embedding.position", "weight"};
  OurName parts;
  std::string rest = name;
  constexpr std::string_view prefix = "layers.";
  if (rest.starts_with(prefix)) {
    const std::size_t dot = rest.find('.', prefix.size());
    parts.layer = rest.substr(prefix.size(), dot - prefix.size());
    rest = rest.substr(dot + 1);
  }
  const std::size_t last = rest.rfind('.');
  parts.stem = rest.substr(0, last);
  parts.ending = rest.substr(last + 1);
  return parts;
}

// How somebody names the tensors that make up a parameter, by our stem: one name, or as many as parts are fused.
struct Naming {
  std::string layerPrefix;
  std::map<std::string, std::vector<std::string>> stems;
};

const Naming& huggingFaceNaming(const model::Configuration& c) {
  static const Naming llama = {"model.layers.",
                               {{"embedding", {"model.embed_tokens"}},
                                {"attention_norm", {"input_layernorm"}},
                                {"attention.qkv", {"self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"}},
                                {"attention.query_norm", {"self_attn.q_norm"}},
                                {"attention.key_norm", {"self_attn.k_norm"}},
                                {"attention.output", {"self_attn.o_proj"}},
                                {"mlp_norm", {"post_attention_layernorm"}},
                                {"mlp.gate_up", {"mlp.gate_proj", "mlp.up_proj"}},
                                {"mlp.down", {"mlp.down_proj"}},
                                {"final_norm", {"model.norm"}},
                                {"head", {"lm_head"}}}};
  static const Naming gpt2 = {"transformer.h.",
                              {{"embedding", {"transformer.wte"}},
                               {"embedding.position", {"transformer.wpe"}},
                               {"attention_norm", {"ln_1"}},
                               {"attention.qkv", {"attn.c_attn"}},
                               {"attention.output", {"attn.c_proj"}},
                               {"mlp_norm", {"ln_2"}},
                               {"mlp.up", {"mlp.c_fc"}},
                               {"mlp.down", {"mlp.c_proj"}},
                               {"final_norm", {"transformer.ln_f"}},
                               {"head", {"lm_head"}}}};
  return c.type == "gpt2" ? gpt2 : llama;
}

Naming ggufNaming(const model::Configuration& c) {
  Naming naming = {"blk.",
                   {{"embedding", {"token_embd"}},
                    {"embedding.position", {"position_embd"}},
                    {"attention_norm", {"attn_norm"}},
                    {"attention.qkv", {"attn_q", "attn_k", "attn_v"}},
                    {"attention.query_norm", {"attn_q_norm"}},
                    {"attention.key_norm", {"attn_k_norm"}},
                    {"attention.output", {"attn_output"}},
                    {"mlp_norm", {"ffn_norm"}},
                    {"mlp.gate_up", {"ffn_gate", "ffn_up"}},
                    {"mlp.up", {"ffn_up"}},
                    {"mlp.down", {"ffn_down"}},
                    {"final_norm", {"output_norm"}},
                    {"head", {"output"}}}};
  if (c.type == "gpt2") naming.stems["attention.qkv"] = {"attn_qkv"};
  return naming;
}

// The rows of each part of a fused parameter.
std::vector<std::int64_t> rowsOfParts(const model::Configuration& c, const std::string& stem, std::size_t parts,
                                      std::int64_t rows) {
  if (parts == 1) return {rows};
  if (stem == "mlp.gate_up") return {c.mlpWidth, c.mlpWidth};
  return {c.heads * c.headSize, c.kvHeads * c.headSize, c.kvHeads * c.headSize};
}

template <class Arrange>
std::vector<Parameter> layoutBy(const model::Configuration& c, const Naming& naming, const Arrange& arrange) {
  std::vector<Parameter> parameters = ourLayout(c);
  for (Parameter& parameter : parameters) {
    const OurName ours = takeApart(parameter.name);
    const std::vector<std::string>& names = naming.stems.at(ours.stem);
    const std::vector<std::int64_t> rows = rowsOfParts(c, ours.stem, names.size(), parameter.shape[0]);
    const std::string prefix = ours.layer.empty() ? "" : naming.layerPrefix + ours.layer + ".";
    parameter.parts.clear();
    std::int64_t firstRow = 0;
    for (std::size_t i = 0; i < names.size(); ++i) {
      Part part{
          prefix + names[i] + "." + ours.ending, parameter.shape, Arrangement::same, firstRow, rows[i], c.headSize};
      part.shape[0] = rows[i];
      part.arrangement = arrange(ours.stem, i, parameter.shape);
      if (part.arrangement == Arrangement::transposed) part.shape = Shape{part.shape[1], part.shape[0]};
      firstRow += rows[i];
      parameter.parts.push_back(std::move(part));
    }
  }
  return parameters;
}

}  // namespace

std::vector<Parameter> ourLayout(const model::Configuration& c) {
  // Any program of the model names all of its parameters.
  const graph::Program program = model::buildLogits(c, 1, 1, base::DType::f32);
  std::vector<Parameter> parameters;
  for (const graph::TensorId id : program.ofRole(graph::Role::parameter)) {
    const graph::Tensor& tensor = program.tensor(id);
    const Part part{tensor.name, tensor.shape, Arrangement::same, 0, tensor.shape[0], c.headSize};
    parameters.push_back({tensor.name, tensor.shape, {part}});
  }
  return parameters;
}

std::vector<Parameter> huggingFaceLayout(const model::Configuration& c) {
  return layoutBy(c, huggingFaceNaming(c), [&](const std::string& stem, std::size_t, const Shape& shape) {
    const bool isEmbedding = stem == "embedding" || stem == "embedding.position" || stem == "head";
    const bool transposed = c.type == "gpt2" && shape.rank() == 2 && !isEmbedding;
    return transposed ? Arrangement::transposed : Arrangement::same;
  });
}

std::vector<Parameter> ggufLayout(const model::Configuration& c) {
  const bool isLlama = c.type == "llama" || c.type == "mistral";
  return layoutBy(c, ggufNaming(c), [&](const std::string& stem, std::size_t part, const Shape&) {
    const bool isQueryOrKey = stem == "attention.qkv" && part < 2;
    return isLlama && isQueryOrKey ? Arrangement::interleaved : Arrangement::same;
  });
}

std::int64_t theirRow(const Part& part, std::int64_t row) {
  if (part.arrangement != Arrangement::interleaved) return row;
  const std::int64_t half = part.headSize / 2, inHead = row % part.headSize;
  return row - inHead + 2 * (inHead % half) + inHead / half;
}

std::int64_t ourRow(const Part& part, std::int64_t row) {
  if (part.arrangement != Arrangement::interleaved) return row;
  const std::int64_t half = part.headSize / 2, inHead = row % part.headSize;
  return row - inHead + inHead / 2 + (inHead % 2) * half;
}

bool isRedundant(const model::Configuration& c, std::string_view name) {
  if (name == "lm_head.weight" || name == "output.weight") return c.tiedEmbeddings;
  return name.ends_with(".attn.bias") || name.ends_with(".attn.masked_bias") ||
         name.ends_with(".rotary_emb.inv_freq") || name == "rope_freqs.weight";
}

}  // namespace tandem::checkpoint
