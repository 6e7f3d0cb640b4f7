#pragma once
// The known name that a mistyped one was probably meant to be.

#include <optional>
#include <string>
#include <vector>

namespace tandem::app {

// The candidate with the smallest edit distance (insertions, deletions, substitutions, swaps of neighbours), if it is
// near enough to be meant: at most two edits, or a third of the length if that is more.
std::optional<std::string> nearestName(const std::string& name, const std::vector<std::string>& candidates);

// "; did you mean '--steps'?" or nothing.
std::string suggestionFor(const std::string& name, const std::vector<std::string>& candidates);

}  // namespace tandem::app
