// make-conversations: writes short conversations, a JSON line each, in the form {"messages": [...]}.
//
//   make-conversations [--part train|test] [--seed N] > conversations.jsonl
//
// Made for the quickstart: sums and differences of small numbers, spelling, questions about short passages in the
// manner of the bundled stories, and who the model is. A base model that was trained on the stories learns in a minute
// to answer them. One conversation in ten is of the part `test`, which the part `train` does not have; the seed chooses
// which.

#include <charconv>
#include <cstring>
#include <iostream>
#include <string>
#include <vector>

#include "common/base/random.h"
#include "data/stories/plots.h"

namespace {

using Turns = std::vector<std::string>;  // user, assistant, user, ...

const std::vector<std::string>& digits() {
  static const std::vector<std::string> list = {"zero", "one", "two",   "three", "four",
                                                "five", "six", "seven", "eight", "nine"};
  return list;
}

void addIdentity(std::vector<Turns>& all) {
  const std::string self = "I am Tandem, a small language model. I was trained on stories.";
  const std::vector<std::pair<std::vector<std::string>, std::string>> answers = {
      {{"Who are you?", "What are you?", "Tell me who you are.", "Are you a person?", "Please introduce yourself."},
       self},
      {{"What is your name?", "Do you have a name?", "How are you called?", "Say your name."}, "My name is Tandem."},
      {{"What can you do?", "How can you help me?", "What do you know?", "What are you good at?"},
       "I can add small numbers, spell words and answer questions about stories."},
      {{"Hello!", "Hello", "Hi", "Hi there!", "Good morning!", "Good day."}, "Hello! What would you like to know?"},
      {{"Thank you!", "Thanks.", "Thank you very much."}, "You are welcome."},
      {{"Goodbye.", "Goodbye!", "See you soon."}, "Goodbye! Come back soon."}};
  for (const auto& [questions, answer] : answers) {
    for (const std::string& question : questions) all.push_back({question, answer});
  }
  for (const std::string greeting : {"Hello!", "Hi", "Good morning!"}) {
    for (const std::string question : {"Who are you?", "What are you?"}) {
      all.push_back({greeting, "Hello! What would you like to know?", question, self});
    }
  }
}

void addSums(std::vector<Turns>& all) {
  for (int a = 0; a < 10; ++a) {
    for (int b = 0; b < 10; ++b) {
      const std::string left = std::to_string(a), right = std::to_string(b), sum = std::to_string(a + b);
      all.push_back({"What is " + left + " plus " + right + "?", left + " plus " + right + " is " + sum + "."});
      if (a >= b) {
        const std::string difference = std::to_string(a - b);
        all.push_back(
            {"What is " + left + " minus " + right + "?", left + " minus " + right + " is " + difference + "."});
      }
    }
    all.push_back(
        {"Write the number " + std::to_string(a) + " as a word.", digits()[static_cast<std::size_t>(a)] + "."});
  }
}

std::vector<std::string> wordsToSpell() {
  std::vector<std::string> words;
  for (const auto& [name, list] : stories::wordLists()) {
    if (name != "color" && name != "number" && name != "weather" && name != "season" && name != "feeling") continue;
    for (const std::string& word : list) words.push_back(word);
  }
  for (const char* word :
       {"kite", "drum", "key", "boat", "book", "bell", "star", "cake", "soup", "tree", "bird", "fox"}) {
    words.emplace_back(word);
  }
  return words;
}

void addSpelling(std::vector<Turns>& all) {
  for (const std::string& word : wordsToSpell()) {
    std::string letters;
    for (const char letter : word) letters += (letters.empty() ? "" : "-") + std::string(1, letter);
    all.push_back({"How do you spell " + word + "?", letters + "."});
    all.push_back({"What is the first letter of " + word + "?", std::string(1, word.front()) + "."});
    all.push_back({"How many letters has the word " + word + "?", std::to_string(word.size()) + "."});
  }
}

void addReading(std::vector<Turns>& all) {
  const auto& characters = stories::characters();
  const auto& places = stories::wordLists().at("place");
  const auto& things = stories::wordLists().at("thing");
  for (std::size_t i = 0; i < characters.size(); ++i) {
    const stories::Character& hero = characters[i];
    const stories::Character& other = characters[(i * 7 + 3) % characters.size()];
    const std::string& place = places[i % places.size()];
    const std::string& thing = things[(i * 5 + 1) % things.size()];
    const std::string he = hero.female ? "She" : "He";
    const std::string passage = hero.name + " was a " + hero.kind + " who lived " + place + ". " + he + " had a " +
                                thing + " and a good friend called " + other.name + ". ";
    all.push_back({passage + "Where did " + hero.name + " live?", hero.name + " lived " + place + "."});
    all.push_back({passage + "What did " + hero.name + " have?", he + " had a " + thing + "."});
    all.push_back({passage + "Who was the friend of " + hero.name + "?", "The friend was " + other.name + "."});
    all.push_back({"Who is " + hero.name + "?", hero.name + " is a " + hero.kind + "."});
  }
}

std::string jsonLine(const Turns& turns) {
  std::string line = "{\"messages\": [";
  for (std::size_t i = 0; i < turns.size(); ++i) {
    line += std::string(i > 0 ? ", " : "") + "{\"role\": \"" + (i % 2 == 0 ? "user" : "assistant") +
            "\", \"content\": \"" + turns[i] + "\"}";
  }
  return line + "]}\n";
}

bool parse(const char* text, std::uint64_t& number) {
  const auto [end, failure] = std::from_chars(text, text + std::strlen(text), number);
  return failure == std::errc() && *end == '\0';
}

int usage() {
  std::cerr << "usage: make-conversations [--part train|test] [--seed N]\n";
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  std::uint64_t seed = 1;
  std::string part = "train";
  for (int i = 1; i < argc; i += 2) {
    if (i + 1 == argc) return usage();
    if (std::strcmp(argv[i], "--part") == 0) {
      part = argv[i + 1];
    } else if (std::strcmp(argv[i], "--seed") != 0 || !parse(argv[i + 1], seed)) {
      return usage();
    }
  }
  if (part != "train" && part != "test") return usage();
  std::vector<Turns> all;
  addIdentity(all);
  addSums(all);
  addSpelling(all);
  addReading(all);
  const tandem::base::Permutation order(all.size(), seed, 0);
  for (std::size_t i = 0; i < all.size(); ++i) {
    if ((i % 10 == 0) == (part == "test")) std::cout << jsonLine(all[order(i)]);
  }
  return std::cout.flush() ? 0 : 1;
}
