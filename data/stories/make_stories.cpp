// make-stories: writes a corpus of short English stories, a JSON line each, from plots with alternatives.
//
//   make-stories [--bytes N] [--seed N] > stories.jsonl
//
// Made for the quickstart: varied, grammatical and small in vocabulary, so that a model of five million parameters
// learns in minutes to write text that holds together. Every story is a function of (seed, its number) alone.

#include <cctype>
#include <charconv>
#include <cstring>
#include <iostream>
#include <map>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "data/stories/plots.h"

namespace {

using tandem::base::RandomStream;

using Words = std::map<std::string, std::string>;

// Expands a template: [a|b|c] becomes one of the alternatives, which may nest; {name} becomes a word of the story.
class Expander {
 public:
  Expander(RandomStream& random, const Words& words) : random_(random), words_(words) {}

  std::string operator()(std::string_view text) {
    std::string result;
    for (std::size_t i = 0; i < text.size();) {
      if (text[i] == '[') {
        const std::size_t end = matching(text, i);
        result += (*this)(choose(text.substr(i + 1, end - i - 1)));
        i = end + 1;
      } else if (text[i] == '{') {
        const std::size_t end = text.find('}', i);
        result += words_.at(std::string(text.substr(i + 1, end - i - 1)));
        i = end + 1;
      } else {
        result += text[i++];
      }
    }
    return result;
  }

 private:
  static std::size_t matching(std::string_view text, std::size_t open) {
    int depth = 0;
    for (std::size_t i = open; i < text.size(); ++i) {
      if (text[i] == '[') ++depth;
      if (text[i] == ']' && --depth == 0) return i;
    }
    return text.size();
  }

  std::string_view choose(std::string_view alternatives) {
    std::vector<std::string_view> parts;
    int depth = 0;
    std::size_t begin = 0;
    for (std::size_t i = 0; i <= alternatives.size(); ++i) {
      if (i == alternatives.size() || (alternatives[i] == '|' && depth == 0)) {
        parts.push_back(alternatives.substr(begin, i - begin));
        begin = i + 1;
      } else if (alternatives[i] == '[') {
        ++depth;
      } else if (alternatives[i] == ']') {
        --depth;
      }
    }
    return parts[random_.nextBelow(parts.size())];
  }

  RandomStream& random_;
  const Words& words_;
};

template <class T>
const T& pick(RandomStream& random, const std::vector<T>& list) {
  return list[random.nextBelow(list.size())];
}

void addCharacter(Words& words, const std::string& role, const stories::Character& character) {
  words[role] = character.name;
  words[role + ".kind"] = character.kind;
  words[role + ".he"] = character.female ? "she" : "he";
  words[role + ".him"] = character.female ? "her" : "him";
  words[role + ".his"] = character.female ? "her" : "his";
}

Words castStory(RandomStream& random) {
  Words words;
  const stories::Character& hero = pick(random, stories::characters());
  addCharacter(words, "hero", hero);
  const stories::Character* helper = &hero;
  while (helper->name == hero.name) helper = &pick(random, stories::characters());
  addCharacter(words, "friend", *helper);
  addCharacter(words, "elder", pick(random, stories::elders()));
  for (const auto& [name, list] : stories::wordLists()) words[name] = pick(random, list);
  return words;
}

bool isVowel(char c) { return std::strchr("aeiou", std::tolower(static_cast<unsigned char>(c))) != nullptr; }

bool endsWithTitle(const std::string& text) { return text.ends_with("Mr.") || text.ends_with("Mrs."); }

// Capitals at the beginning of sentences, and "an" before vowels. A quotation begins with a capital too, unless it goes
// on after its speaker was named ("Wait," said Anna, "and see."); what follows a quotation never does.
std::string polish(const std::string& text) {
  std::string result;
  bool begins = true;
  bool quotationGoesOn = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (begins && std::isalpha(static_cast<unsigned char>(c))) {
      result += static_cast<char>(std::toupper(static_cast<unsigned char>(c)));
      begins = false;
    } else {
      result += c;
    }
    const bool wordBegan = i == 0 || !std::isalpha(static_cast<unsigned char>(text[i - 1]));
    if (wordBegan && (c == 'a' || c == 'A') && i + 2 < text.size() && text[i + 1] == ' ' && isVowel(text[i + 2]))
      result += 'n';
    const char before = i > 0 ? text[i - 1] : ' ';
    if ((c == '.' && !endsWithTitle(result)) || c == '!' || c == '?' || c == '\n') {
      begins = true;
      quotationGoesOn = false;
    }
    if (c == '"' && (before == '!' || before == '?')) begins = false;
    if (c == '"' && before == ',') quotationGoesOn = true;
    if (c == '"' && before == ' ' && i > 1 && text[i - 2] == ',') begins = !quotationGoesOn;
  }
  return result;
}

std::string writeStory(std::uint64_t seed, std::uint64_t number) {
  RandomStream random(seed, number);
  const Words words = castStory(random);
  Expander expand(random, words);
  const stories::Plot& plot = pick(random, stories::plots());
  std::string story = expand(pick(random, stories::openings())) + " ";
  for (std::size_t part = 0; part < plot.size(); ++part) {
    story += expand(pick(random, plot[part])) + (part % 2 == 1 ? "\n\n" : " ");
  }
  story += expand(pick(random, stories::endings()));
  return polish(story);
}

std::string jsonLine(const std::string& text) {
  std::string line = "{\"text\": \"";
  for (const char c : text) {
    if (c == '"') line += '\\';
    line += c == '\n' ? "\\n" : std::string(1, c);
  }
  return line + "\"}\n";
}

bool parse(const char* text, std::uint64_t& number) {
  const auto [end, failure] = std::from_chars(text, text + std::strlen(text), number);
  return failure == std::errc() && *end == '\0';
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t bytes = 3'000'000, seed = 1;
  for (int i = 1; i < argc; i += 2) {
    const bool isBytes = std::strcmp(argv[i], "--bytes") == 0, isSeed = std::strcmp(argv[i], "--seed") == 0;
    if ((!isBytes && !isSeed) || i + 1 == argc || !parse(argv[i + 1], isBytes ? bytes : seed)) {
      std::cerr << "usage: make-stories [--bytes N] [--seed N]\n";
      return 2;
    }
  }
  std::uint64_t written = 0;
  for (std::uint64_t number = 0; written < bytes; ++number) {
    const std::string line = jsonLine(writeStory(seed, number));
    std::cout << line;
    written += line.size();
  }
  return std::cout.flush() ? 0 : 1;
}
