#pragma once
// Checks that something throws an Error of a kind, with all the given words in its message.

#include <gtest/gtest.h>

#include <initializer_list>
#include <string>

#include "common/base/error.h"

namespace tandem::data {

template <class Work>
void expectError(base::ErrorKind kind, std::initializer_list<std::string> words, Work&& work) {
  try {
    work();
  } catch (const base::Error& error) {
    EXPECT_EQ(error.kind(), kind) << error.what();
    for (const std::string& word : words) {
      EXPECT_NE(error.message().find(word), std::string::npos) << "'" << word << "' is missing in: " << error.message();
    }
    return;
  }
  ADD_FAILURE() << "nothing was thrown";
}

}  // namespace tandem::data
