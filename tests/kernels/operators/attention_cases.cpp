#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <limits>

#include "kernels/quantised_cache.h"
#include "tests/kernels/operators/label.h"
#include "tests/kernels/operators/operator_case.h"

namespace tandem::kernels::test {

namespace {

enum class Documents { one, several, everyToken };

struct Options {
  std::int64_t batch, time;
  HeadLayout layout;
  std::int64_t window = 0;
  Documents documents = Documents::one;
  std::int64_t padding = 0;  // elements between the rows of all buffers
  double deviation = 1;      // of queries and keys
};

std::string nameOf(const Options& o) {
  static const char* const documents[] = {"", "_documents", "_everyTokenADocument"};
  return label({{"batch", o.batch},
                {"time", o.time},
                {"heads", o.layout.heads},
                {"kvHeads", o.layout.kvHeads},
                {"size", o.layout.headSize},
                {"window", o.window}}) +
         documents[static_cast<int>(o.documents)] + (o.padding ? "_padded" : "") + (o.deviation > 1 ? "_sharp" : "");
}

float scaleOf(const HeadLayout& layout) { return 1 / std::sqrt(static_cast<float>(layout.headSize)); }

// Adds a slice of heads of a [batch, time, rowWidth] buffer as an operand [batch, time, heads, headSize].
void addHeads(Case& c, const char* name, const char* buffer, const Options& o, std::int64_t firstHead,
              std::int64_t heads, std::int64_t rowWidth, Draw draw) {
  const std::int64_t size = o.layout.headSize;
  c.add({name,
         buffer,
         Storage::varied,
         {o.batch, o.time, heads, size},
         {o.time * rowWidth, rowWidth, size, 1},
         firstHead * size,
         std::move(draw)});
}

// Queries, keys and values (or their gradients) inside one fused projection, as the model has them.
void addProjection(Case& c, const Options& o, const char* buffer, std::array<const char*, 3> names, bool drawn) {
  const HeadLayout& layout = o.layout;
  const std::int64_t rowWidth = layout.width() + o.padding;
  const Draw scores = drawn ? normal(o.deviation) : Draw(), contents = drawn ? normal() : Draw();
  addHeads(c, names[0], buffer, o, 0, layout.heads, rowWidth, scores);
  addHeads(c, names[1], buffer, o, layout.heads, layout.kvHeads, rowWidth, scores);
  addHeads(c, names[2], buffer, o, layout.heads + layout.kvHeads, layout.kvHeads, rowWidth, contents);
}

// Fixed, not drawn, so that a call can be told how many there are.
bool begins(const Options& o, std::int64_t row, std::int64_t place) {
  if (place == 0 || o.documents == Documents::everyToken) return true;
  return o.documents == Documents::several && (3 * place * place + 5 * place + 7 * row) % 23 < 4;
}

Draw documentStarts(const Options& o) {
  return [o](base::RandomStream&, std::vector<double>& all) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto row = static_cast<std::int64_t>(i) / o.time, place = static_cast<std::int64_t>(i) % o.time;
      all[i] = begins(o, row, place) ? static_cast<double>(place) : all[i - 1];
    }
  };
}

std::int64_t documentsOf(const Options& o) {
  std::int64_t count = 0;
  for (std::int64_t row = 0; row < o.batch; ++row) {
    for (std::int64_t place = 0; place < o.time; ++place) count += begins(o, row, place);
  }
  return count;
}

double pairsOf(const Options& o) {
  double pairs = 0;
  for (std::int64_t t = 0; t < o.time; ++t) {
    pairs += static_cast<double>(o.window > 0 ? std::min(t + 1, o.window) : t + 1);
  }
  return pairs * static_cast<double>(o.batch * o.layout.heads * o.layout.headSize);
}

Case makeCase(const Options& o) {
  const std::int64_t heads = o.layout.heads, outputWidth = heads * o.layout.headSize + o.padding;
  Case c("attention", nameOf(o));
  addProjection(c, o, "projection", {"query", "key", "value"}, true);
  c.index("documentStart", {o.batch, o.time}, documentStarts(o));
  addHeads(c, "output", "output", o, 0, heads, outputWidth, nullptr);
  c.result("logSumExp", {o.batch, heads, o.time}, Storage::single);
  addHeads(c, "gradOutput", "gradOutput", o, 0, heads, outputWidth, normal());
  addProjection(c, o, "gradProjection", {"gradQuery", "gradKey", "gradValue"}, false);
  const float scale = scaleOf(o.layout);
  const std::int64_t documents = documentsOf(o);
  c.step("Attention", 4 * pairsOf(o),
         [window = o.window, scale, documents](Operands& v, Backend& backend, Stream& stream) {
           backend.run(Attention{.query = v.in("query"),
                                 .key = v.in("key"),
                                 .value = v.in("value"),
                                 .documentStart = v.in("documentStart"),
                                 .window = window,
                                 .scale = scale,
                                 .output = v.out("output"),
                                 .logSumExp = v.out("logSumExp"),
                                 .documents = documents},
                       stream);
         });
  c.step("AttentionBackward", 10 * pairsOf(o),
         [window = o.window, scale, documents](Operands& v, Backend& backend, Stream& stream) {
           backend.run(AttentionBackward{.query = v.in("query"),
                                         .key = v.in("key"),
                                         .value = v.in("value"),
                                         .documentStart = v.in("documentStart"),
                                         .output = v.in("output"),
                                         .logSumExp = v.in("logSumExp"),
                                         .gradOutput = v.in("gradOutput"),
                                         .window = window,
                                         .scale = scale,
                                         .gradQuery = v.out("gradQuery"),
                                         .gradKey = v.out("gradKey"),
                                         .gradValue = v.out("gradValue"),
                                         .documents = documents},
                       stream);
         });
  c.loss("output", "gradOutput");
  c.derivative("query", "gradQuery").derivative("key", "gradKey").derivative("value", "gradValue");
  // A query that sees one key only has no gradient; with a window of 1 roundings of dots are all there is.
  c.smallestMagnitude = o.window == 1 ? 0.5 : 0.1;
  return o.deviation > 1 ? c.tolerance(3e-4, 3e-2) : c.tolerance(2e-5, 2e-2);
}

// Queries that stand at `firstQuery` of a longer row, over `earlier` keys from its place `firstKey` on, and over the
// keys of their own piece, put together.
struct PiecesOptions {
  std::int64_t batch, time, firstQuery, firstKey, earlier;
  HeadLayout layout;
  std::int64_t window = 0;
};

// Documents that began before the piece, and one in six tokens that begins one.
Draw documentStartsOfPiece(const PiecesOptions& o) {
  return [o](base::RandomStream& random, std::vector<double>& all) {
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto place = static_cast<std::int64_t>(i) % o.time;
      if (random.nextBelow(6) == 0) {
        all[i] = static_cast<double>(o.firstQuery + place);
      } else {
        all[i] = place > 0 ? all[i - 1]
                           : static_cast<double>(random.nextBelow(static_cast<std::uint64_t>(o.firstQuery + 1)));
      }
    }
  };
}

Case makePiecesCase(const PiecesOptions& o) {
  Case c("attention", label({{"batch", o.batch},
                             {"time", o.time},
                             {"firstQuery", o.firstQuery},
                             {"firstKey", o.firstKey},
                             {"earlier", o.earlier},
                             {"heads", o.layout.heads},
                             {"kvHeads", o.layout.kvHeads},
                             {"size", o.layout.headSize},
                             {"window", o.window}}) +
                          "_pieces");
  const Shape queries{o.batch, o.time, o.layout.heads, o.layout.headSize};
  const Shape own{o.batch, o.time, o.layout.kvHeads, o.layout.headSize};
  const Shape others{o.batch, o.earlier, o.layout.kvHeads, o.layout.headSize};
  c.tensor("query", queries, normal()).tensor("gradOutput", queries, normal());
  c.tensor("key", own, normal()).tensor("value", own, normal());
  c.tensor("otherKey", others, normal()).tensor("otherValue", others, normal());
  c.index("documentStart", {o.batch, o.time}, documentStartsOfPiece(o));
  c.result("output", queries).result("otherOutput", queries);
  c.result("logSumExp", {o.batch, o.layout.heads, o.time}, Storage::single);
  c.result("otherLogSumExp", {o.batch, o.layout.heads, o.time}, Storage::single);
  c.result("gradQuery", queries).result("otherGradQuery", queries);
  c.result("gradKey", own).result("gradValue", own);
  c.result("otherGradKey", others).result("otherGradValue", others);
  const float scale = scaleOf(o.layout);
  const double pairs = static_cast<double>(queries.count() * (o.earlier + o.time / 2));
  c.step("MergeAttention", 4 * pairs, [o, scale](Operands& v, Backend& backend, Stream& stream) {
    Attention call{.query = v.in("query"),
                   .key = v.in("key"),
                   .value = v.in("value"),
                   .documentStart = v.in("documentStart"),
                   .window = o.window,
                   .scale = scale,
                   .output = v.out("output"),
                   .logSumExp = v.out("logSumExp"),
                   .firstQuery = o.firstQuery,
                   .firstKey = o.firstQuery};
    backend.run(call, stream);
    call.key = v.in("otherKey");
    call.value = v.in("otherValue");
    call.output = v.out("otherOutput");
    call.logSumExp = v.out("otherLogSumExp");
    call.firstKey = o.firstKey;
    backend.run(call, stream);
    backend.run(MergeAttention{call.output, call.logSumExp, v.out("output"), v.out("logSumExp")}, stream);
  });
  c.step("AttentionBackward", 10 * pairs, [o, scale](Operands& v, Backend& backend, Stream& stream) {
    AttentionBackward call{.query = v.in("query"),
                           .key = v.in("key"),
                           .value = v.in("value"),
                           .documentStart = v.in("documentStart"),
                           .output = v.in("output"),
                           .logSumExp = v.in("logSumExp"),
                           .gradOutput = v.in("gradOutput"),
                           .window = o.window,
                           .scale = scale,
                           .gradQuery = v.out("gradQuery"),
                           .gradKey = v.out("gradKey"),
                           .gradValue = v.out("gradValue"),
                           .firstQuery = o.firstQuery,
                           .firstKey = o.firstQuery};
    backend.run(call, stream);
    call.key = v.in("otherKey");
    call.value = v.in("otherValue");
    call.gradQuery = v.out("otherGradQuery");
    call.gradKey = v.out("otherGradKey");
    call.gradValue = v.out("otherGradValue");
    call.firstKey = o.firstKey;
    backend.run(call, stream);
  });
  c.loss("output", "gradOutput").derivative("key", "gradKey").derivative("value", "gradValue");
  c.derivative("otherKey", "otherGradKey").derivative("otherValue", "otherGradValue");
  c.smallestMagnitude = 0.1;
  return c.tolerance(3e-5, 3e-2);
}

struct CachedOptions {
  std::vector<std::int64_t> lengths;  // a sequence each
  std::int64_t fresh, capacity;
  HeadLayout layout;
  std::int64_t window = 0;
  bool inCodes = false;  // caches in 8 bits
};

// What is beyond a sequence's length is NaN, for it must not be read.
Draw cacheContents(const CachedOptions& o) {
  return [o](base::RandomStream& random, std::vector<double>& all) {
    const std::int64_t size = o.layout.headSize, perSequence = o.layout.kvHeads * o.capacity * size;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const auto at = static_cast<std::int64_t>(i);
      const bool filled = at / size % o.capacity < o.lengths[static_cast<std::size_t>(at / perSequence)];
      all[i] = filled ? static_cast<double>(random.nextNormal()) : std::numeric_limits<double>::quiet_NaN();
    }
  };
}

// The same of a cache in 8 bits: bytes of scales and codes.
Draw cacheCodes(const CachedOptions& o) {
  return [o](base::RandomStream& random, std::vector<double>& all) {
    const std::int64_t row = cacheRowBytes(o.layout.headSize), perSequence = o.layout.kvHeads * o.capacity;
    for (std::int64_t begin = 0; begin < std::ssize(all); begin += row) {
      const std::int64_t place = begin / row;
      const bool filled = place % o.capacity < o.lengths[static_cast<std::size_t>(place / perSequence)];
      const float scale = filled ? 0.004f + 0.02f * random.nextUniform() : std::numeric_limits<float>::quiet_NaN();
      std::array<unsigned char, cacheScaleBytes> bytes{};
      std::memcpy(bytes.data(), &scale, bytes.size());
      for (std::int64_t i = 0; i < row; ++i) {
        const auto code = static_cast<unsigned char>(static_cast<std::int64_t>(random.nextBelow(255)) - 127);
        all[static_cast<std::size_t>(begin + i)] = i < cacheScaleBytes ? bytes[static_cast<std::size_t>(i)] : code;
      }
    }
  };
}

TensorView cacheOf(Operands& v, const char* name, bool inCodes) {
  TensorView cache = v.out(name);
  if (inCodes) cache.type = DType::i8;
  return cache;
}

Case makeCachedCase(const CachedOptions& o) {
  const auto batch = static_cast<std::int64_t>(o.lengths.size());
  const Options projection{batch, o.fresh, o.layout, o.window};
  std::vector<double> lengths;
  double pairs = 0;
  std::string lengthNames;
  for (const std::int64_t length : o.lengths) {
    lengths.push_back(static_cast<double>(length));
    lengthNames += "_" + std::to_string(length);
    pairs += static_cast<double>(o.fresh * (o.window > 0 ? std::min(length + 1, o.window) : length + 1));
  }
  Case c("cachedAttention", nameOf(projection) + "_lengths" + lengthNames + (o.inCodes ? "_int8" : ""));
  addProjection(c, projection, "projection", {"query", "key", "value"}, true);
  c.index("lengths", {batch}, values(lengths));
  for (const char* cache : {"keyCache", "valueCache"}) {
    if (o.inCodes) {
      const Shape shape = {batch, o.layout.kvHeads, o.capacity, cacheRowBytes(o.layout.headSize)};
      c.add({cache, cache, Storage::codes, shape, {}, 0, cacheCodes(o)});
    } else {
      c.tensor(cache, {batch, o.layout.kvHeads, o.capacity, o.layout.headSize}, cacheContents(o));
    }
  }
  c.result("output", {batch, o.fresh, o.layout.heads, o.layout.headSize});
  c.step("CachedAttention", 4 * pairs * static_cast<double>(o.layout.heads * o.layout.headSize),
         [window = o.window, scale = scaleOf(o.layout), inCodes = o.inCodes](Operands& v, Backend& backend,
                                                                             Stream& stream) {
           backend.run(CachedAttention{.query = v.in("query"),
                                       .key = v.in("key"),
                                       .value = v.in("value"),
                                       .lengths = v.in("lengths"),
                                       .keyCache = cacheOf(v, "keyCache", inCodes),
                                       .valueCache = cacheOf(v, "valueCache", inCodes),
                                       .window = window,
                                       .scale = scale,
                                       .output = v.out("output")},
                       stream);
         });
  return c.tolerance(2e-5, 2e-2);
}

}  // namespace

void addAttentionCases(Registry& registry) {
  for (const PiecesOptions& options : {
           PiecesOptions{1, 1, 1, 0, 1, {1, 1, 4}},
           PiecesOptions{2, 17, 40, 5, 17, {2, 1, 8}},
           PiecesOptions{1, 130, 390, 0, 130, {4, 2, 16}},
           PiecesOptions{1, 70, 200, 60, 101, {3, 1, 24}, 90},
           PiecesOptions{2, 33, 100, 50, 33, {2, 2, 64}, 20},
       }) {
    registry.cases.push_back(makePiecesCase(options));
  }
  for (const Options& options : {
           Options{1, 1, {1, 1, 16}},
           Options{2, 3, {2, 2, 16}, 0, Documents::one, 5},
           Options{2, 17, {6, 2, 64}},
           Options{1, 65, {9, 3, 16}, 0, Documents::several},
           Options{2, 21, {4, 1, 80}, 0, Documents::several, 16},
           Options{1, 130, {1, 1, 64}},
           Options{1, 150, {2, 1, 16}, 0, Documents::several},
           Options{1, 35, {2, 1, 96}, 16},
           Options{1, 40, {2, 2, 128}, 5, Documents::several},
           Options{2, 33, {3, 3, 16}, 1},
           Options{1, 140, {2, 1, 16}, 70, Documents::several, 3},
           Options{2, 17, {2, 2, 16}, 0, Documents::everyToken},
           Options{1, 65, {2, 1, 64}, 64},
           Options{1, 9, {2, 1, 10}, 4},
           Options{1, 65, {4, 2, 64}, 0, Documents::several, 0, 6},
           Options{1, 70, {6, 2, 64}, 0, Documents::several},
           Options{1, 135, {1, 1, 80}, 70},
           Options{1, 129, {1, 1, 96}, 1},
           Options{1, 130, {2, 1, 128}, 0, Documents::several},
           Options{0, 8, {4, 2, 16}},
       }) {
    registry.cases.push_back(makeCase(options));
  }
  for (const CachedOptions& options : {
           CachedOptions{{0}, 1, 8, {1, 1, 16}},
           CachedOptions{{0, 5}, 3, 17, {6, 2, 64}},
           CachedOptions{{64, 1, 17}, 1, 65, {9, 3, 80}},
           CachedOptions{{31}, 33, 64, {4, 1, 96}},
           CachedOptions{{130, 0}, 17, 200, {2, 2, 128}, 16},
           CachedOptions{{7, 40}, 1, 41, {4, 2, 16}, 5},
           CachedOptions{{9}, 2, 11, {2, 1, 10}, 1},
           CachedOptions{{150, 3}, 1, 260, {6, 2, 64}},
           CachedOptions{{100}, 130, 230, {2, 1, 64}, 70},
           CachedOptions{{0, 5}, 3, 17, {6, 2, 64}, 0, true},
           CachedOptions{{64, 1}, 1, 65, {9, 3, 80}, 20, true},
           CachedOptions{{31, 90}, 33, 130, {4, 2, 64}, 0, true},
           CachedOptions{{9}, 2, 11, {2, 1, 10}, 0, true},
       }) {
    registry.cases.push_back(makeCachedCase(options));
  }
  registry.timed.push_back(makeCase({4, 256, {12, 12, 64}}));
  registry.timed.push_back(makeCase({1, 2048, {12, 4, 64}}));
  registry.timed.push_back(makeCase({1, 2048, {8, 2, 128}, 512}));
  registry.timed.push_back(makeCachedCase({{1000}, 1, 1024, {12, 4, 64}}));
  registry.timed.push_back(makeCachedCase({{1000}, 1, 1024, {12, 4, 64}, 0, true}));
}

}  // namespace tandem::kernels::test
