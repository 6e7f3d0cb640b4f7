#include "apps/shared/version.h"

#include "common/comm/nccl_group.h"
#include "common/comm/session.h"
#include "common/hdf5/hdf5.h"
#include "kernels/backend.h"

namespace tandem::app {
namespace {

std::string line(const std::string& name, const std::string& value) {
  constexpr std::size_t column = 10;
  return name + std::string(name.size() < column ? column - name.size() : 1, ' ') + value + "\n";
}

}  // namespace

std::string version() { return TANDEM_VERSION; }

std::string versionText(const Program& program) {
  std::string text = program.name + " " + version() + " (Tandem)\n";
  text += line("build", TANDEM_BUILD);
  text += line("MPI", comm::libraryVersion());
  text += line("HDF5", hdf5::libraryVersion());
  for (const auto& [name, value] : program.versions) text += line(name, value);
  text += line("CUDA", kernels::cudaVersion());
  text += line("NCCL", comm::ncclVersion());
  return text;
}

}  // namespace tandem::app
