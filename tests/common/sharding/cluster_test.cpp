// Descriptions of clusters: what they say, and what is said of one that is wrong.

#include "common/sharding/cluster.h"

#include <gtest/gtest.h>

#include <map>

#include "common/base/error.h"

namespace tandem::sharding {
namespace {

const std::string pair = R"(# two nodes
nodes = 2
devices-per-node = 4
memory-gib = 80
reserve-gib = 5
matrix-tflops-fp32 = 50
matrix-tflops-bf16 = 600
memory-gb-per-second = 3000
launch-microseconds = 5
inside-gb-per-second = 300
inside-latency-microseconds = 4
between-gb-per-second = 100
between-latency-microseconds = 10
)";

std::string without(const std::string& name) {
  const std::size_t begin = pair.find("\n" + name + " =") + 1;
  return pair.substr(0, begin) + pair.substr(pair.find('\n', begin) + 1);
}

std::string refusal(const std::string& text) {
  try {
    parseCluster(text, "some/pair.toml");
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), base::ErrorKind::usage);
    return error.message();
  }
  ADD_FAILURE() << "nothing was refused in\n" << text;
  return "";
}

TEST(Cluster, isReadInSecondsAndBytes) {
  const Cluster cluster = parseCluster(pair, "some/pair.toml");
  EXPECT_EQ(cluster.name, "pair");
  EXPECT_EQ(cluster.devices(), 8);
  EXPECT_EQ(cluster.usableBytes(), std::int64_t{75} << 30);
  EXPECT_DOUBLE_EQ(cluster.matrixRate(base::DType::f32), 50e12);
  EXPECT_DOUBLE_EQ(cluster.matrixRate(base::DType::bf16), 600e12);
  EXPECT_DOUBLE_EQ(cluster.memoryRate, 3e12);
  EXPECT_DOUBLE_EQ(cluster.inside.bytesPerSecond, 300e9);
  EXPECT_DOUBLE_EQ(cluster.between.latencySeconds, 10e-6);
  EXPECT_DOUBLE_EQ(cluster.overlap, 1);
}

TEST(Cluster, isRefusedWithTheEntryAndWhatItMayBe) {
  EXPECT_EQ(refusal(without("nodes")), "the cluster description 'some/pair.toml': 'nodes' is missing");
  EXPECT_NE(refusal(pair + "overlap = 1.5").find("line 14: 'overlap' must be a number from 0 to 1"), std::string::npos);
  EXPECT_NE(refusal(pair + "overlap = half").find("line 14: 'overlap' must be a number"), std::string::npos);
  EXPECT_NE(refusal(pair + "overlap = [0, 1]").find("line 14: 'overlap' must be a number"), std::string::npos);
  EXPECT_NE(refusal(pair + "gpus = 8").find("line 14: there is no entry 'gpus'; there are 'nodes', 'devices-per-node'"),
            std::string::npos);
  EXPECT_NE(refusal(without("nodes") + "nodes = 1.5").find("line 13: 'nodes' must be a whole number"),
            std::string::npos);
  EXPECT_NE(refusal(without("nodes") + "nodes = 0").find("line 13: 'nodes' must be a number from 1"),
            std::string::npos);
  EXPECT_NE(refusal(without("reserve-gib") + "reserve-gib = 80").find("leaves nothing"), std::string::npos);
  EXPECT_NE(refusal(without("matrix-tflops-bf16") + "matrix-tflops-bf16 = nan").find("must be a number"),
            std::string::npos);
}

TEST(Cluster, hasTheLinksThatItNeedsAndNoOthers) {
  EXPECT_NE(refusal(without("between-gb-per-second")).find("'between-gb-per-second' is missing"), std::string::npos);
  EXPECT_NE(
      refusal(without("nodes") + "nodes = 1").find("line 11: 'between-gb-per-second' is given, but there is one node"),
      std::string::npos);
  EXPECT_NE(refusal(without("devices-per-node") + "devices-per-node = 1")
                .find("'inside-gb-per-second' is given, but a node has one device"),
            std::string::npos);
}

TEST(Cluster, givesAGroupItsShareOfTheLinkThatItCrosses) {
  const Cluster cluster = parseCluster(pair, "pair.toml");
  // Four neighbours of one node, and every second of them.
  EXPECT_DOUBLE_EQ(linkOfGroup(cluster, 4, 1).bytesPerSecond, 300e9);
  EXPECT_DOUBLE_EQ(linkOfGroup(cluster, 2, 2).bytesPerSecond, 300e9);
  // All eight: one ring has the whole link between the nodes; four rings of two each a quarter.
  EXPECT_DOUBLE_EQ(linkOfGroup(cluster, 8, 1).bytesPerSecond, 100e9);
  EXPECT_DOUBLE_EQ(linkOfGroup(cluster, 2, 4).bytesPerSecond, 25e9);
  EXPECT_DOUBLE_EQ(linkOfGroup(cluster, 2, 4).latencySeconds, 10e-6);
}

TEST(Cluster, describedInTheTreeAreReadable) {
  for (const auto& [name, devices] :
       std::map<std::string, int>{{"spark-pair", 2}, {"h100-4x8", 32}, {"h100-64x8", 512}, {"cpu-2core", 2}}) {
    const Cluster cluster = readCluster(TANDEM_DATA_FOLDER "/clusters/" + name + ".toml");
    EXPECT_EQ(cluster.name, name);
    EXPECT_EQ(cluster.devices(), devices);
  }
}

}  // namespace
}  // namespace tandem::sharding
