#include "apps/shared/suggestion.h"

#include <algorithm>

namespace tandem::app {
namespace {

// Optimal string alignment distance, by the textbook's dynamic programme over prefixes.
std::size_t editDistance(const std::string& a, const std::string& b) {
  std::vector<std::vector<std::size_t>> cost(a.size() + 1, std::vector<std::size_t>(b.size() + 1));
  for (std::size_t i = 0; i <= a.size(); ++i) cost[i][0] = i;
  for (std::size_t j = 0; j <= b.size(); ++j) cost[0][j] = j;
  for (std::size_t i = 1; i <= a.size(); ++i) {
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t substitution = cost[i - 1][j - 1] + (a[i - 1] == b[j - 1] ? 0 : 1);
      cost[i][j] = std::min({cost[i - 1][j] + 1, cost[i][j - 1] + 1, substitution});
      const bool swapped = i > 1 && j > 1 && a[i - 1] == b[j - 2] && a[i - 2] == b[j - 1];
      if (swapped) cost[i][j] = std::min(cost[i][j], cost[i - 2][j - 2] + 1);
    }
  }
  return cost[a.size()][b.size()];
}

}  // namespace

std::optional<std::string> nearestName(const std::string& name, const std::vector<std::string>& candidates) {
  constexpr std::size_t longest = 200;  // nobody mistypes more, and the distance takes quadratic time
  if (name.size() > longest) return std::nullopt;
  std::optional<std::string> nearest;
  std::size_t smallest = std::max<std::size_t>(2, name.size() / 3) + 1;
  for (const std::string& candidate : candidates) {
    const std::size_t distance = editDistance(name, candidate);
    if (distance < smallest && distance < candidate.size()) {
      smallest = distance;
      nearest = candidate;
    }
  }
  return nearest;
}

std::string suggestionFor(const std::string& name, const std::vector<std::string>& candidates) {
  const std::optional<std::string> nearest = nearestName(name, candidates);
  return nearest ? "; did you mean '" + *nearest + "'?" : "";
}

}  // namespace tandem::app
