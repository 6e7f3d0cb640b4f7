// What is shown of an answer while it is being written: whole characters, and nothing that a stop text swallows.

#include "apps/evaluate/text_stream.h"

#include <gtest/gtest.h>

namespace tandem::evaluate {
namespace {

TEST(TextStream, handsOutWhatComes) {
  TextStream stream({});
  stream.append("Ada");
  EXPECT_EQ(stream.takeReady(), "Ada");
  EXPECT_EQ(stream.takeReady(), "");
  stream.append(" sees");
  EXPECT_EQ(stream.takeReady(), " sees");
  EXPECT_EQ(stream.takeRest(), "");
  EXPECT_EQ(stream.text(), "Ada sees");
  EXPECT_FALSE(stream.stopped());
}

TEST(TextStream, holdsACharacterBackUntilItIsWhole) {
  for (const std::string character : {"\xc3\xa4", "\xe6\xbc\xa2", "\xf0\x9f\x90\x8a"}) {
    TextStream stream({});
    stream.append("a");
    for (std::size_t i = 0; i + 1 < character.size(); ++i) {
      stream.append(character.substr(i, 1));
      EXPECT_EQ(stream.takeReady(), i == 0 ? "a" : "") << character;
    }
    stream.append(character.substr(character.size() - 1) + "b");
    EXPECT_EQ(stream.takeReady(), character + "b");
  }
}

TEST(TextStream, aCharacterThatIsNeverFinishedComesWithTheRest) {
  TextStream stream({});
  stream.append("a\xe6\xbc");
  EXPECT_EQ(stream.takeReady(), "a");
  EXPECT_EQ(stream.takeRest(), "\xe6\xbc");
}

TEST(TextStream, bytesThatAreNoUtf8AreNotHeldForever) {
  TextStream stream({});
  stream.append("\x80\x80\x80\x80\x80");
  EXPECT_EQ(stream.takeReady(), "\x80\x80\x80\x80\x80");
  stream.append("\xff");
  stream.append("abc");
  EXPECT_EQ(stream.takeReady(),
            "\xff"
            "abc");
}

TEST(TextStream, endsBeforeAStopText) {
  TextStream stream({"END"});
  stream.append("one END two");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.text(), "one ");
  stream.append("three");
  EXPECT_EQ(stream.text(), "one ");
  EXPECT_EQ(stream.takeReady(), "one ");
  EXPECT_EQ(stream.takeRest(), "");
}

TEST(TextStream, findsAStopTextThatComesInPieces) {
  TextStream stream({"</s>"});
  for (const char* piece : {"ab", "<", "/", "s"}) stream.append(piece);
  EXPECT_EQ(stream.takeReady(), "ab") << "what may become the stop text is held back";
  stream.append(">c");
  EXPECT_TRUE(stream.stopped());
  EXPECT_EQ(stream.text(), "ab");
  EXPECT_EQ(stream.takeReady(), "");
}

TEST(TextStream, whatOnlyBeganLikeAStopTextIsHandedOut) {
  TextStream stream({"</s>"});
  stream.append("a</");
  EXPECT_EQ(stream.takeReady(), "a");
  stream.append("b>");
  EXPECT_EQ(stream.takeReady(), "</b>");
  stream.append("<");
  EXPECT_EQ(stream.takeReady(), "");
  EXPECT_EQ(stream.takeRest(), "<");
}

TEST(TextStream, theFirstOfSeveralStopTextsEnds) {
  TextStream stream({"two", "one", ""});
  stream.append("zero one two");
  EXPECT_EQ(stream.text(), "zero ");
}

TEST(TextStream, aStopTextThatRepeatsItselfIsFoundAtItsFirstPlace) {
  TextStream stream({"aab"});
  for (const char* piece : {"x", "a", "a", "a"}) stream.append(piece);
  EXPECT_EQ(stream.takeReady(), "xa");
  stream.append("b");
  EXPECT_EQ(stream.text(), "xa");
  EXPECT_TRUE(stream.stopped());
}

}  // namespace
}  // namespace tandem::evaluate
