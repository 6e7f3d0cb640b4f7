#include "apps/shared/threads.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <fstream>
#include <map>
#include <set>

#include "common/base/error.h"

namespace tandem::app {
namespace {

// The first hardware thread of the core that a hardware thread belongs to ("0-1" and "0,64" both begin with it).
int coreOf(int cpu) {
  std::ifstream siblings("/sys/devices/system/cpu/cpu" + std::to_string(cpu) + "/topology/thread_siblings_list");
  int first = cpu;
  return siblings >> first ? first : cpu;
}

std::set<int> allowedCores() {
  std::set<int> cores;
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) {  // more processors than the mask has bits
    const long online = sysconf(_SC_NPROCESSORS_ONLN);
    for (int cpu = 0; cpu < online; ++cpu) cores.insert(coreOf(cpu));
    return cores;
  }
  for (int cpu = 0; cpu < CPU_SETSIZE; ++cpu) {
    if (CPU_ISSET(static_cast<std::size_t>(cpu), &allowed)) cores.insert(coreOf(cpu));
  }
  return cores;
}

}  // namespace

int fairThreadCount(comm::Communicator& world) {
  const std::set<int> mine = allowedCores();
  std::string self = base::identity().host;
  for (const int core : mine) self += "\n" + std::to_string(core);
  std::map<std::string, int> users;  // of each host's cores, keyed by "host\ncore"
  for (const std::string& text : comm::allGatherTexts(world, self)) {
    const std::size_t hostEnd = text.find('\n');
    const std::string host = text.substr(0, hostEnd);
    for (std::size_t at = hostEnd; at != std::string::npos;) {
      const std::size_t next = text.find('\n', at + 1);
      ++users[host + text.substr(at, next == std::string::npos ? next : next - at)];
      at = next;
    }
  }
  double share = 0;
  for (const int core : mine) share += 1.0 / users[base::identity().host + "\n" + std::to_string(core)];
  return std::max(1, static_cast<int>(share + 1e-6));
}

}  // namespace tandem::app
