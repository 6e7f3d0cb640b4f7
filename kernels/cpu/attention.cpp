// Attention: the forward pass over whole sequences.
#include "kernels/cpu/attention_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/attention.cpp"
#include "hwy/foreach_target.h"
#include "kernels/cpu/attention_forward.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

template <class Element>
void attend(const Attention& op, Context& context) {
  ForwardProblem<Element> problem;
  problem.query = headsOf<Element>(op.query);
  problem.key = headsOf<Element>(op.key);
  problem.value = headsOf<Element>(op.value);
  problem.output = headsOf<Element>(op.output);
  problem.logSumExp = static_cast<float*>(op.logSumExp.data);
  problem.documentStarts = DocumentStarts(op.documentStart);
  problem.batch = op.query.shape[0];
  problem.queries = op.query.shape[1];
  problem.keys = op.key.shape[1];
  problem.firstQuery = op.firstQuery;
  problem.firstKey = op.firstKey;
  problem.heads = op.query.shape[2];
  problem.headSize = op.query.shape[3];
  problem.kvHeads = op.key.shape[2];
  problem.window = op.window;
  problem.scale = op.scale;
  attendForward(problem, context);
}

void runAttention(const Attention& op, Context& context) {
  withElement(op.query.type, [&](auto* element) { attend<std::remove_pointer_t<decltype(element)>>(op, context); });
}

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::kernels::cpu {

HWY_EXPORT(runAttention);
void run(const Attention& op, Context& context) { HWY_DYNAMIC_DISPATCH(runAttention)(op, context); }

}  // namespace tandem::kernels::cpu
#endif
