#pragma once
// A model's weights in memory for inference, or frozen beside adapters, from a checkpoint: as numbers, quantised while
// they are read, or as the checkpoint holds them quantised already.

#include <map>
#include <memory>
#include <optional>
#include <string>

#include "common/checkpoint/model_source.h"
#include "common/checkpoint/quantisation.h"
#include "common/runtime/parameter_store.h"
#include "common/train/adapters.h"
#include "common/train/device.h"

namespace tandem::train {

// The parameters that a program of the model names, or `parts` of them. `format`: what the matrices become; none keeps
// each as it is stored. A matrix is read in panels of rows, so that beside the model itself there are never more than
// some megabytes. A part has the numbers that the whole matrix has there, with its scales, so columns of int4 are cut
// between groups. Not collective: every rank reads for itself. Throws Error of kind usage when the checkpoint holds a
// matrix quantised to another format, badData when it is damaged.
std::unique_ptr<runtime::ParameterStore> loadForInference(const checkpoint::ModelSource& model,
                                                          const graph::Program& program, base::DType storage,
                                                          std::optional<checkpoint::QuantisedFormat> format,
                                                          const Device& device,
                                                          const std::map<std::string, sharding::Part>& parts = {});

// Whether a checkpoint holds matrices quantised.
bool holdsQuantised(const checkpoint::ModelSource& model);

// Room for the frozen weights of a training program, over `ranks` that each hold them all. With
// adapters.baseFormat the matrices of the layers are held quantised to it, embeddings and head stay numbers, and the
// program has to go through the store's prepared() after all other passes.
std::unique_ptr<runtime::ParameterStore> makeFrozen(const graph::Program& program, const AdapterOptions& adapters,
                                                    base::DType storage, int ranks, const Device& device);

// Fills them. Not collective: every rank reads the whole model. Throws like loadForInference.
void loadFrozen(const checkpoint::ModelSource& model, const runtime::ParameterStore& frozen, const Device& device);

// What of a program's frozen parameters is quantised.
graph::QuantisedParameters frozenFormats(const graph::Program& program, const AdapterOptions& adapters);

}  // namespace tandem::train
