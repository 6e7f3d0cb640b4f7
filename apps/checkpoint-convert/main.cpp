// checkpoint-convert: brings models in and out, and says what they hold.

#include "apps/checkpoint-convert/commands.h"

int main(int argc, char** argv) {
  using namespace tandem;
  return app::runProgram(argc, argv,
                         {.name = "checkpoint-convert",
                          .purpose = "Brings models in and out, and says what they hold.",
                          .commands = {convert::importCommand(), convert::exportCommand(), convert::inspectCommand(),
                                       convert::verifyCommand(), convert::diffCommand(), convert::mergeCommand(),
                                       convert::quantizeCommand(), convert::reshardCommand()}});
}
