// evaluate: measures a trained model, and lets it write.

#include "apps/evaluate/commands.h"

int main(int argc, char** argv) {
  using namespace tandem;
  return app::runProgram(argc, argv,
                         {.name = "evaluate",
                          .purpose = "Measures a trained model, and lets it write.",
                          .commands = {evaluate::lossCommand(), evaluate::tasksCommand(), evaluate::generateCommand(),
                                       evaluate::chatCommand(), evaluate::speedCommand(), evaluate::compareCommand()}});
}
