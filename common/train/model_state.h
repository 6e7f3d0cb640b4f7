#pragma once
// What of a model and its optimizer goes into a checkpoint, under which names, and comes back out of one.
//
// model/NAME is the float32 master of a parameter, optimizer/first_moment/NAME and optimizer/second_moment/NAME are its
// AdamW moments, float32 or bfloat16; shapes are those of the logical parameters. Where adapters are learned
// (adapters.h) there is nothing but these. Any grid of ranks reads what any other wrote.

#include <string>
#include <vector>

#include "common/checkpoint/checkpoint.h"
#include "common/checkpoint/model_source.h"
#include "common/model/configuration.h"
#include "common/optim/optimizer.h"
#include "common/runtime/parameter_store.h"
#include "common/train/adapters.h"
#include "common/train/device.h"

namespace tandem::train {

// This rank's contribution. The pieces point into the live state: valid until it changes.
std::vector<checkpoint::LocalTensor> localTensors(const runtime::ParameterStore& parameters,
                                                  const optim::Optimizer& optimizer);

// How the pieces come to the host.
checkpoint::CopyToHost copyFrom(const Device& device);

// Fills this rank's shard of masters and moments, then publishes the weights. Collective.
void restore(const checkpoint::Reader& reader, const runtime::ParameterStore& parameters, optim::Optimizer& optimizer,
             comm::Communicator& communicator, const Device& device);

// The same of the masters alone, with the weights of a model, however they are stored. Collective.
void beginWith(const checkpoint::ModelSource& model, const runtime::ParameterStore& parameters,
               optim::Optimizer& optimizer, comm::Communicator& communicator, const Device& device);

// Fills this rank's shard of the masters with initial values, of a model or of adapters, then publishes the weights.
// Collective.
void initialise(const model::Configuration& configuration, std::uint64_t seed,
                const runtime::ParameterStore& parameters, optim::Optimizer& optimizer, const Device& device);

// Tokens of the rows that a model was trained on. An imported one does not say: its positions, but 2048 at most.
std::int64_t trainedSequenceLength(const checkpoint::ModelSource& model);

// Fills all weights of a store, for evaluation and as frozen ones. Not collective: every rank reads what it holds of
// the model.
void loadWeights(const checkpoint::ModelSource& model, const runtime::ParameterStore& parameters, const Device& device);

}  // namespace tandem::train
