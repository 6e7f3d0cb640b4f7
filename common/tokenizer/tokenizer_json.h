#pragma once
// tokenizer.json, the format of Hugging Face tokenizers, for byte-level BPE.
//
// Read: model BPE (both spellings of merges, ignore_merges, unk_token, fuse_unk), normalizer NFC, pre-tokenizers
// ByteLevel with its own pattern, Digits + ByteLevel, and Split by a known regular expression + ByteLevel, added
// tokens, post-processors that put special tokens round a text. `truncation` and `padding` concern batches and are not
// looked at. Everything else that would change ids is refused with the name of the field, never ignored. Written: one
// canonical form that gives the same ids there. Its hash identifies a tokenizer.

#include <string>
#include <string_view>

#include "common/tokenizer/definition.h"
#include "common/tokenizer/tokenizer.h"

namespace tandem::tokenizer {

// Throws Error of kind badData that names `origin` (a path, say), the field and the reason.
Tokenizer fromJson(std::string_view text, const std::string& origin);

std::string writeTokenizerJson(const Definition& definition);

}  // namespace tandem::tokenizer
