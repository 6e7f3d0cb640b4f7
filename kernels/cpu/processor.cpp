#include "kernels/cpu/processor.h"

#include "kernels/cpu/simd_targets.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "kernels/cpu/processor.cpp"
#include "hwy/foreach_target.h"
#include "hwy/highway.h"

HWY_BEFORE_NAMESPACE();
namespace tandem::kernels::cpu::HWY_NAMESPACE {

const char* targetName() { return hwy::TargetName(HWY_TARGET); }

}  // namespace tandem::kernels::cpu::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace tandem::kernels::cpu {

HWY_EXPORT(targetName);

std::string simdTarget() { return HWY_DYNAMIC_DISPATCH(targetName)(); }

bool isX86() { return HWY_ARCH_X86 != 0; }

}  // namespace tandem::kernels::cpu
#endif
