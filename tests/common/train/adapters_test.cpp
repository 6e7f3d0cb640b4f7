#include "common/train/adapters.h"

#include <gtest/gtest.h>

#include <cmath>
#include <set>

#include "common/base/error.h"

namespace tandem::train {
namespace {

TEST(Adapters, areChosenByThePartsOfTheirNames) {
  const auto chosen = [](std::vector<std::string> targets, const std::string& weight) {
    return AdapterOptions{.targets = std::move(targets)}.forTraining().isChosen(weight);
  };
  EXPECT_TRUE(chosen({}, "layers.11.attention.qkv.weight"));
  EXPECT_FALSE(chosen({}, "head.weight"));
  EXPECT_TRUE(chosen({"mlp"}, "layers.0.mlp.down.weight"));
  EXPECT_FALSE(chosen({"mlp"}, "layers.0.attention.output.weight"));
  EXPECT_TRUE(chosen({"mlp.up", "attention.qkv"}, "layers.3.attention.qkv.weight"));
  EXPECT_FALSE(chosen({"mlp.up"}, "layers.3.mlp.down.weight"));
}

TEST(Adapters, scaleByAlphaAndRank) {
  EXPECT_FLOAT_EQ((AdapterOptions{.rank = 8, .alpha = 32}).scale(), 4);
  EXPECT_FLOAT_EQ((AdapterOptions{.rank = 16, .alpha = 32, .rankStabilised = true}).scale(), 8);
}

TEST(Adapters, decomposedOnesLearnAndAreRecordedAsSuch) {
  const AdapterOptions decomposed{.decomposed = true};
  EXPECT_TRUE(decomposed.forTraining().decomposed);
  EXPECT_TRUE(decomposed.forEvaluation().decomposed);
  EXPECT_NE(decomposed.json().find(R"("decomposed":true)"), std::string::npos) << decomposed.json();
  // Runs from before there were any go on.
  EXPECT_EQ(AdapterOptions{}.json().find("decomposed"), std::string::npos);
  EXPECT_TRUE(isAdapter("layers.0.mlp.up.lora_m"));
  EXPECT_FALSE(isAdapter("layers.0.mlp.up.weight"));
}

TEST(Adapters, refuseNumbersOutOfRange) {
  for (const AdapterOptions& wrong :
       {AdapterOptions{.rank = 0}, AdapterOptions{.alpha = 0}, AdapterOptions{.alpha = std::nan("")},
        AdapterOptions{.dropout = 1}, AdapterOptions{.dropout = -0.1}, AdapterOptions{.targets = {"norm"}}}) {
    EXPECT_THROW(check(wrong), base::Error);
  }
  EXPECT_NO_THROW(check(AdapterOptions{}));
}

TEST(Adapters, beginAsZeroAndAnySliceCanBeMadeAlone) {
  std::vector<float> whole(1000), slice(7);
  for (const char* name : {"layers.0.mlp.up.lora_b", "layers.0.mlp.up.lora_m"}) {
    std::vector<float> values(10, 1);
    initialiseAdapter(name, 16, 1, 0, values);
    EXPECT_EQ(values, std::vector<float>(10, 0)) << name;
  }
  initialiseAdapter("layers.0.mlp.up.lora_a", 16, 1, 0, whole);
  initialiseAdapter("layers.0.mlp.up.lora_a", 16, 1, 333, slice);
  EXPECT_TRUE(std::equal(slice.begin(), slice.end(), whole.begin() + 333));
  double square = 0;
  for (const float value : whole) {
    EXPECT_LE(std::abs(value), 0.25f);
    square += static_cast<double>(value) * static_cast<double>(value);
  }
  EXPECT_NEAR(square / 1000, 1.0 / 48, 0.002);
}

TEST(Adapters, everySampleHasAKeyOfItsOwnForDropout) {
  const std::vector<std::int32_t> first = dropoutKeys(7, 0, 100), later = dropoutKeys(7, 40, 1);
  EXPECT_EQ(std::set<std::int32_t>(first.begin(), first.end()).size(), 200u);
  EXPECT_EQ(later, (std::vector<std::int32_t>{first[80], first[81]}));
  EXPECT_NE(dropoutKeys(8, 40, 1), later);
}

TEST(Adapters, aCheckpointSaysWhetherItHoldsThemAlone) {
  EXPECT_FALSE(holdsAdapters({.progress = ""}));
  EXPECT_FALSE(holdsAdapters({.progress = R"({"tokens": 3})"}));
  EXPECT_TRUE(holdsAdapters({.progress = R"({"adapters": {"rank": 2}})"}));
}

}  // namespace
}  // namespace tandem::train
