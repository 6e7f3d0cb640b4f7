#pragma once
// What the stories are made of. In a text, [a|b] is one of the alternatives and {word} a word of the story: the
// characters hero, friend and elder with their .kind, .he, .him and .his, and one word of each list of wordLists().

#include <map>
#include <string>
#include <vector>

namespace stories {

struct Character {
  std::string name;
  std::string kind;
  bool female = false;
};

// The parts of a plot in their order; of each, one version is told.
using Plot = std::vector<std::vector<std::string>>;

const std::vector<Character>& characters();
const std::vector<Character>& elders();
const std::map<std::string, std::vector<std::string>>& wordLists();
const std::vector<std::string>& openings();
const std::vector<Plot>& plots();
const std::vector<std::string>& endings();

}  // namespace stories
