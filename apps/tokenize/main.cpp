// tokenize: trains tokenizers, and turns text into token datasets and back.

#include "apps/shared/program.h"
#include "apps/tokenize/decode.h"
#include "apps/tokenize/encode.h"
#include "apps/tokenize/inspect.h"
#include "apps/tokenize/train.h"

int main(int argc, char** argv) {
  using namespace tandem::app;
  return runProgram(
      argc, argv,
      {.name = "tokenize",
       .purpose = "Trains byte-level BPE tokenizers, encodes text to datasets, decodes and inspects them.",
       .commands = {trainCommand(), encodeCommand(), decodeCommand(), inspectCommand()}});
}
