#pragma once
// Models that are computed from others while they are read: so whoever writes or compares models does it to these too,
// and no more is in memory than the elements asked for.

#include <filesystem>
#include <memory>
#include <vector>

#include "common/checkpoint/model_source.h"

namespace tandem::checkpoint {

// The weighted mean of models of one shape, in float64; all but the weights of the model is the first's. The weights
// are divided by their sum. Throws Error of kind badData that names the parameter where the models differ in shape, and
// of kind usage for weights that are too few, too many, or sum to zero.
std::unique_ptr<ModelSource> averageOf(std::vector<std::unique_ptr<ModelSource>> models, std::vector<double> weights);

// A model with a LoRA adapter in PEFT's form (adapter_config.json, adapter_model.safetensors) added to its matrices:
//   W + scale B A,  scale = alpha / rank, or alpha / sqrt(rank) for rsLoRA;
// for DoRA each row of that is then given the length that the adapter has for it (a row of zeros stays one). Computed
// in float64, rounded once to the type of the model. Throws Error of kind badData, with the file, for an adapter that
// is not whole, does not fit the model, or asks for something else than these.
std::unique_ptr<ModelSource> withAdapter(std::unique_ptr<ModelSource> model, const std::filesystem::path& adapter);

// Whether a checkpoint of ours holds nothing but adapters, as finetuning leaves them: of linears NAME.weight the
// tensors model/NAME.lora_a [rank, inputs] and model/NAME.lora_b [outputs, rank], for DoRA model/NAME.lora_m [outputs]
// (what each row has gained over its length in the base), and in its progress what they are ("adapters": rank, alpha,
// rank_stabilised, decomposed) and whose they are ("base": path, and fingerprint: the hash of its checksums).
bool holdsAdapters(const Reader& run);
// Where their base is. Throws Error of kind badData when it is not there, or another than they were learned for.
std::filesystem::path baseOfAdapters(const Reader& run);

// The base with them, under the run's metadata.
std::unique_ptr<ModelSource> withAdapters(std::unique_ptr<ModelSource> base, const Reader& run);

// Writes them as PEFT has them: projections that we compute at once share lora_A, and have their own rows of lora_B.
// For DoRA this reads the base, since PEFT holds whole lengths of rows. Collective.
void writeAdapter(comm::Communicator& communicator, const Reader& run, const std::filesystem::path& folder);

}  // namespace tandem::checkpoint
