// The process grid: which rank stands where, and what is said when ranks or model do not fit.

#include "common/sharding/grid.h"

#include <gtest/gtest.h>

#include <set>

#include "common/base/error.h"

namespace tandem::sharding {
namespace {

model::Configuration model() {
  return model::parseConfiguration(R"({"model_type": "llama", "vocab_size": 50, "hidden_size": 16,
    "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 24,
    "max_position_embeddings": 64})",
                                   "of the test");
}

std::string refusal(const std::function<void()>& work) {
  try {
    work();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::usage);
    return error.message();
  }
  ADD_FAILURE() << "nothing was refused";
  return "";
}

std::string refusalOf(const std::string& text, int ranks) {
  return refusal([&] { parseGrid(text, ranks); });
}

TEST(Grid, countsTensorFastestThenContextDataAndPipeline) {
  const Grid grid{.pipeline = 2, .data = 3, .context = 2, .tensor = 2};
  EXPECT_EQ(grid.ranks(), 24);
  EXPECT_EQ(coordinatesOf(grid, 1), (Coordinates{.tensor = 1}));
  EXPECT_EQ(coordinatesOf(grid, 2), (Coordinates{.context = 1}));
  EXPECT_EQ(coordinatesOf(grid, 4), (Coordinates{.data = 1}));
  EXPECT_EQ(coordinatesOf(grid, 12), (Coordinates{.pipeline = 1}));
  for (int rank = 0; rank < grid.ranks(); ++rank) EXPECT_EQ(rankAt(grid, coordinatesOf(grid, rank)), rank);
}

TEST(Grid, readsItsOwnText) {
  const Grid grid{.pipeline = 1, .data = 2, .context = 3, .tensor = 2, .zero = 3};
  EXPECT_EQ(grid.text(), "dp=2,tp=2,pp=1,cp=3,zero=3");
  EXPECT_EQ(parseGrid(grid.text(), 12), grid);
}

TEST(Grid, readsVirtualStagesAndNamesThemWhereThereAreSome) {
  const Grid grid{.pipeline = 2, .data = 2, .virtualStages = 3};
  EXPECT_EQ(grid.ranks(), 4);
  EXPECT_EQ(grid.stages(), 6);
  EXPECT_EQ(grid.text(), "dp=2,tp=1,pp=2,cp=1,zero=1,vp=3");
  EXPECT_EQ(parseGrid(grid.text(), 4), grid);
  EXPECT_EQ(parseGrid("vp=1,pp=2", 4), (Grid{.pipeline = 2, .data = 2}));
  EXPECT_NE(refusalOf("pp=2,vp=0", 2).find("vp=0: it must be a whole number from 1"), std::string::npos);
  EXPECT_NE(refusalOf("pp=2,vp=2,vp=2", 2).find("vp is given twice"), std::string::npos);
}

TEST(Grid, givesTheDataAxisWhatTheOthersLeave) {
  EXPECT_EQ(parseGrid("tp=2", 8), (Grid{.data = 4, .tensor = 2}));
  EXPECT_EQ(parseGrid("cp=2,zero=0,tp=3", 6), (Grid{.data = 1, .context = 2, .tensor = 3, .zero = 0}));
}

TEST(Grid, refusesATextThatIsNone) {
  EXPECT_NE(refusalOf("", 4).find("is empty"), std::string::npos);
  EXPECT_NE(refusalOf("dp=2,xp=2", 4).find("'xp=2'"), std::string::npos);
  EXPECT_NE(refusalOf("dp=2,,tp=2", 4).find("''"), std::string::npos);
  EXPECT_NE(refusalOf("dp", 4).find("whole number"), std::string::npos);
  EXPECT_NE(refusalOf("dp=0", 4).find("from 1 to 4"), std::string::npos);
  EXPECT_NE(refusalOf("dp=2x", 4).find("dp=2x"), std::string::npos);
  EXPECT_NE(refusalOf("dp=99999999999999", 4).find("whole number"), std::string::npos);
  EXPECT_NE(refusalOf("zero=4", 4).find("from 0 to 3"), std::string::npos);
  EXPECT_NE(refusalOf("tp=2,tp=2", 4).find("tp is given twice"), std::string::npos);
}

TEST(Grid, ofOtherRanksThanThereAreSaysWhichGridsFit) {
  const std::string message = refusalOf("dp=2,tp=3", 4);
  EXPECT_NE(message.find("a grid of 6 ranks, but there are 4"), std::string::npos) << message;
  EXPECT_NE(message.find("dp=4; dp=2,cp=2; dp=2,pp=2; dp=2,tp=2;"), std::string::npos) << message;
  EXPECT_NE(refusalOf("tp=3", 4).find("these fit"), std::string::npos);
}

TEST(Grid, thatAModelCannotFillSaysWhyAndWhichWouldFit) {
  EXPECT_EQ(whyNotFitting({.tensor = 4}, model(), 32), "");
  EXPECT_EQ(whyNotFitting({.tensor = 5}, model(), 32), "tp=5 is more than the model's 4 heads");
  EXPECT_EQ(whyNotFitting({.pipeline = 4}, model(), 32), "pp=4 is more than the model's 3 layers");
  EXPECT_EQ(whyNotFitting({.pipeline = 3, .virtualStages = 1}, model(), 32), "");
  EXPECT_EQ(whyNotFitting({.pipeline = 2, .virtualStages = 2}, model(), 32),
            "vp=2 on pp=2 makes 4 virtual stages, more than the model's 3 layers; vp can be up to 1");
  EXPECT_NE(whyNotFitting({.data = 2, .virtualStages = 2}, model(), 32).find("use pp=2 or more"), std::string::npos);
  EXPECT_NE(whyNotFitting({.context = 3}, model(), 32).find("a multiple of 6"), std::string::npos);
  EXPECT_EQ(whyNotFitting({.context = 3}, model(), 0), "");
  const std::string message = refusal([] { demandFitting({.tensor = 5}, model(), 32); });
  EXPECT_NE(message.find("4 heads; on 5 ranks these fit: dp=5"), std::string::npos) << message;
}

TEST(Grid, everyFittingGridIsListedOnce) {
  const std::vector<Grid> grids = fittingGrids(8, model(), 32);
  std::set<std::string> texts;
  for (const Grid& grid : grids) {
    EXPECT_EQ(grid.ranks(), 8);
    EXPECT_EQ(whyNotFitting(grid, model(), 32), "") << grid.text();
    EXPECT_TRUE(texts.insert(grid.text()).second) << grid.text();
  }
  // 20 ways to write 8 as a product of four, less tp=8 (one), pp=8 (one) and pp=4 (three).
  EXPECT_EQ(texts.size(), 15u);
  EXPECT_EQ(grids.front(), (Grid{.data = 8}));
}

TEST(Grid, mapNamesHostsAndCoordinates) {
  const auto alone = comm::makeSingleProcess();
  const std::string map = gridMap(*alone, {});
  EXPECT_EQ(std::count(map.begin(), map.end(), '\n'), 2);
  EXPECT_NE(map.find(base::identity().host), std::string::npos);
  EXPECT_EQ(map.find("virtual stages"), std::string::npos);
}

TEST(Grid, mapNamesTheVirtualStagesOfARank) {
  const auto alone = comm::makeSingleProcess();
  const std::string map = gridMap(*alone, {.virtualStages = 3});
  EXPECT_NE(map.find("tensor  virtual stages\n"), std::string::npos) << map;
  EXPECT_NE(map.find("  0, 1, 2\n"), std::string::npos) << map;
}

}  // namespace
}  // namespace tandem::sharding
