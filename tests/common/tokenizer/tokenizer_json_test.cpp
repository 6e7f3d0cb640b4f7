#include "common/tokenizer/tokenizer_json.h"

#include <gtest/gtest.h>

#include "common/base/hash.h"
#include "common/tokenizer/tiktoken.h"
#include "golden.h"

namespace tandem::tokenizer {
namespace {

using nlohmann::json;

std::string refusal(const std::string& text) {
  return messageOf(base::ErrorKind::badData, [&] { fromJson(text, "some/tokenizer.json"); });
}

// The refusal of the golden Llama tokenizer after a change.
template <typename Change>
std::string refusalAfter(Change&& change) {
  json changed = goldenTokenizer("llama3");
  change(changed);
  return refusal(changed.dump());
}

void expectNames(const std::string& message, const std::string& field) {
  EXPECT_NE(message.find("some/tokenizer.json"), std::string::npos) << message;
  EXPECT_NE(message.find(field), std::string::npos) << message;
}

TEST(TokenizerJson, isWrittenInOneFormThatReadsBackTheSame) {
  for (const auto& [patternName, data] : golden()["patterns"].items()) {
    const Tokenizer fromPeer = fromJson(data["tokenizer_json"].get<std::string>(), patternName);
    const Tokenizer again = fromJson(fromPeer.json(), patternName);
    EXPECT_EQ(again.json(), fromPeer.json());
    EXPECT_EQ(again.hash(), fromPeer.hash());
    EXPECT_EQ(fromPeer.hash(), base::hashHex(fromPeer.json()));
    EXPECT_EQ(again.pattern(), parsePattern(patternName));
    for (const auto& text : golden()["texts"]) {
      EXPECT_EQ(again.encode(text.get<std::string>()), fromPeer.encode(text.get<std::string>()));
    }
  }
}

TEST(TokenizerJson, hashDoesNotDependOnHowTheFileIsSpaced) {
  const json parsed = goldenTokenizer("gpt2");
  EXPECT_EQ(fromJson(parsed.dump(), "tight").hash(), fromJson(parsed.dump(4), "loose").hash());
  EXPECT_NE(fromJson(parsed.dump(), "gpt2").hash(), fromJson(goldenTokenizer("qwen2").dump(), "qwen2").hash());
}

TEST(TokenizerJson, readsBothSpellingsOfMerges) {
  json pairs = goldenTokenizer("llama3");
  json joined = pairs;
  for (json& merge : pairs["model"]["merges"]) {
    if (merge.is_string()) {
      const auto both = merge.get<std::string>();
      merge = {both.substr(0, both.find(' ')), both.substr(both.find(' ') + 1)};
    }
  }
  for (json& merge : joined["model"]["merges"]) {
    if (merge.is_array()) merge = merge[0].get<std::string>() + " " + merge[1].get<std::string>();
  }
  ASSERT_NE(pairs, joined);
  EXPECT_EQ(fromJson(pairs.dump(), "pairs").hash(), fromJson(joined.dump(), "joined").hash());
}

TEST(TokenizerJson, takesAWholeWordForItsTokenWhereMergesAreIgnored) {
  json changed = goldenTokenizer("llama3");
  const auto id = static_cast<TokenId>(changed["model"]["vocab"].size());
  changed["model"]["vocab"]["zqxj"] = id;
  EXPECT_EQ(fromJson(changed.dump(), "merges").encode("zqxj").size(), 4u);
  changed["model"]["ignore_merges"] = true;
  const Tokenizer tokenizer = fromJson(changed.dump(), "whole words");
  EXPECT_EQ(tokenizer.encode("zqxj"), std::vector<TokenId>{id});
  EXPECT_EQ(fromJson(tokenizer.json(), "again").encode("zqxj"), std::vector<TokenId>{id});
}

TEST(TokenizerJson, readsThePreTokenizerOfSmolLm) {
  json changed = goldenTokenizer("gpt2");
  changed["pre_tokenizer"] = {
      {"type", "Sequence"},
      {"pretokenizers",
       {{{"type", "Digits"}, {"individual_digits", true}},
        {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"trim_offsets", true}, {"use_regex", true}}}}};
  const Tokenizer tokenizer = fromJson(changed.dump(), "digits");
  EXPECT_EQ(tokenizer.pattern(), Pattern::gpt2Digits);
  EXPECT_EQ(fromJson(tokenizer.json(), "again").json(), tokenizer.json());
}

TEST(TokenizerJson, beginAndEndOfADocumentComeFromTheTemplateElseFromKnownNames) {
  json changed = goldenTokenizer("llama3");
  const Tokenizer plain = fromJson(changed.dump(), "plain");
  EXPECT_EQ(plain.beginToken(), plain.specialId("<|endoftext|>"));
  EXPECT_EQ(plain.endToken(), plain.specialId("<|endoftext|>"));

  const auto id = static_cast<TokenId>(plain.vocabularySize());
  changed["added_tokens"].push_back({{"id", id}, {"content", "<start>"}, {"special", true}, {"normalized", false}});
  changed["post_processor"] = {
      {"type", "Sequence"},
      {"processors",
       {{{"type", "ByteLevel"}, {"add_prefix_space", true}, {"trim_offsets", false}},
        {{"type", "TemplateProcessing"},
         {"single",
          {{{"SpecialToken", {{"id", "<start>"}, {"type_id", 0}}}}, {{"Sequence", {{"id", "A"}, {"type_id", 0}}}}}},
         {"pair", json::array()},
         {"special_tokens", json::object()}}}}};
  const Tokenizer withTemplate = fromJson(changed.dump(), "template");
  EXPECT_EQ(withTemplate.beginToken(), id);
  EXPECT_EQ(withTemplate.endToken(), plain.specialId("<|endoftext|>"));
  EXPECT_EQ(fromJson(withTemplate.json(), "again").beginToken(), id);
}

TEST(TokenizerJson, malformedFilesAreRefused) {
  expectNames(refusal(""), "JSON");
  expectNames(refusal("{\"model\":"), "JSON");
  expectNames(refusal("[1, 2]"), "JSON");
  expectNames(refusal("{}"), "model");
  expectNames(refusal("{\"normalizer\":" + std::string(200000, '[')), "nested");
  const json object = {{"a", {{"type", "NFC"}}}};
  expectNames(refusalAfter([&](json& j) {
                j["normalizer"] = {{"type", "Sequence"}, {"normalizers", object}};
              }),
              "normalizer.normalizers");
  expectNames(refusalAfter([&](json& j) {
                j["post_processor"] = {{"type", "Sequence"}, {"processors", "ab"}};
              }),
              "post_processor.processors");
  expectNames(refusal("{\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"a\":1},\"merges\":[]}}"), "'a'");
  const std::string whole = goldenTokenizer("llama3").dump();
  expectNames(refusal(whole.substr(0, whole.size() / 2)), "JSON");
}

TEST(TokenizerJson, whatIsNotSupportedIsRefusedByName) {
  expectNames(refusalAfter([](json& j) { j["model"]["type"] = "WordPiece"; }), "model.type");
  expectNames(refusalAfter([](json& j) { j["model"]["byte_fallback"] = true; }), "model.byte_fallback");
  expectNames(refusalAfter([](json& j) { j["model"]["dropout"] = 0.1; }), "model.dropout");
  expectNames(refusalAfter([](json& j) { j["model"]["continuing_subword_prefix"] = "##"; }),
              "continuing_subword_prefix");
  expectNames(refusalAfter([](json& j) { j["normalizer"] = {{"type", "Lowercase"}}; }), "normalizer.type");
  expectNames(refusalAfter([](json& j) { j["pre_tokenizer"] = nullptr; }), "pre_tokenizer");
  expectNames(refusalAfter([](json& j) { j["pre_tokenizer"] = {{"type", "Metaspace"}}; }), "pre_tokenizer.type");
  expectNames(refusalAfter([](json& j) { j["pre_tokenizer"]["pretokenizers"][1]["add_prefix_space"] = true; }),
              "pre_tokenizer.pretokenizers[1].add_prefix_space");
  expectNames(refusalAfter([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["pattern"]["Regex"] = "\\w+"; }),
              "pre_tokenizer.pretokenizers[0].pattern.Regex");
  expectNames(refusalAfter([](json& j) { j["pre_tokenizer"]["pretokenizers"][0]["behavior"] = "Removed"; }),
              "behavior");
  expectNames(refusalAfter([](json& j) { j["decoder"] = {{"type", "WordPiece"}}; }), "decoder.type");
  expectNames(refusalAfter([](json& j) {
                j["post_processor"] = {{"type", "RobertaProcessing"}};
              }),
              "post_processor.type");
  expectNames(refusalAfter([](json& j) { j["added_tokens"][0]["lstrip"] = true; }), "added_tokens[0].lstrip");
}

TEST(TokenizerJson, whatDoesNotFitTogetherIsRefused) {
  expectNames(refusalAfter([](json& j) { j["model"]["vocab"]["new"] = 5; }), "id 5");
  expectNames(refusalAfter([](json& j) { j["model"]["vocab"]["new"] = 5000; }), "hole");
  expectNames(refusalAfter([](json& j) { j["model"]["vocab"]["new"] = 4000000000u; }), "hole");
  expectNames(refusalAfter([](json& j) { j["model"]["vocab"]["new"] = -1; }), "model.vocab['new']");
  expectNames(refusalAfter([](json& j) { j["model"]["vocab"]["new"] = "7"; }), "model.vocab['new']");
  expectNames(refusalAfter([](json& j) { j["model"]["vocab"] = json::array(); }), "model.vocab");
  expectNames(refusalAfter([](json& j) { j["model"]["merges"].push_back("a"); }), "model.merges[");
  expectNames(refusalAfter([](json& j) { j["model"]["merges"].push_back("a b c"); }), "model.merges[");
  expectNames(refusalAfter([](json& j) { j["model"]["merges"].push_back("zz qq"); }), "'zz'");
  expectNames(refusalAfter([](json& j) { j["model"]["unk_token"] = "<nothing>"; }), "model.unk_token");
  expectNames(refusalAfter([](json& j) { j["added_tokens"].push_back(j["added_tokens"][0]); }), "twice");
  expectNames(refusalAfter([](json& j) { j["added_tokens"][0]["id"] = 3; }), "added_tokens[0]");
  expectNames(refusalAfter([](json& j) { j["added_tokens"][0].erase("content"); }), "added_tokens[0].content");
}

}  // namespace
}  // namespace tandem::tokenizer
