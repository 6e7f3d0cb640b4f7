#include "apps/evaluate/sampling_options.h"

namespace tandem::evaluate {

void declareSamplingOptions(CLI::App& app, runtime::SamplingOptions& options) {
  app.add_option("--temperature", options.temperature, "0: always the most likely token")->type_name("NUMBER");
  app.add_option("--top-k", options.topK, "Keep the k most likely tokens; 0: all")->type_name("TOKENS");
  app.add_option("--top-p", options.topP, "Keep the most likely tokens that sum to p")->type_name("PART");
  app.add_option("--min-p", options.minP, "Keep tokens that are p times as likely as the likeliest")->type_name("PART");
  app.add_option("--repetition-penalty", options.repetitionPenalty, "Above 1: avoid tokens seen before")
      ->type_name("NUMBER");
  app.add_option("--seed", options.seed, "Of the random choices")->type_name("NUMBER");
}

}  // namespace tandem::evaluate
