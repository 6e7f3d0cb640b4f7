// Prints a line for each tensor of a checkpoint, "CHECKSUM NAME": equal lines are tensors equal bit for bit, whatever
// the number of ranks that wrote them.

#include <cstdio>
#include <vector>

#include "common/base/hash.h"
#include "common/checkpoint/checkpoint.h"
#include "common/comm/session.h"

int main(int argc, char** argv) {
  using namespace tandem;
  return comm::Session::run(argc, argv, [&](comm::Communicator& world) {
    if (argc != 2) throw base::Error(base::ErrorKind::usage, "usage: checkpoint_checksums FOLDER");
    const checkpoint::Reader reader(world, argv[1]);
    for (const checkpoint::Reader::Entry& entry : reader.tensors()) {
      std::vector<std::byte> content(static_cast<std::size_t>(entry.shape.count() * base::byteSize(entry.type)));
      reader.read(entry.name, entry.type, entry.shape, 0, entry.shape.count(), content.data());
      std::printf("%s %s\n", base::hashHex({reinterpret_cast<const char*>(content.data()), content.size()}).c_str(),
                  entry.name.c_str());
    }
    return 0;
  });
}
