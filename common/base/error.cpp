#include "common/base/error.h"

#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <system_error>

namespace tandem::base {
namespace {

Identity& processIdentity() {
  static Identity identity = [] {
    char host[256] = "unknown host";
    gethostname(host, sizeof host - 1);
    return Identity{.rank = 0, .ranks = 1, .host = host};
  }();
  return identity;
}

// The path from the source root on, which is all a reader needs.
std::string shortPath(const char* file) {
  const std::string path = file;
  for (const char* root : {"/apps/", "/common/", "/kernels/", "/tests/"}) {
    const size_t at = path.rfind(root);
    if (at != std::string::npos) return path.substr(at + 1);
  }
  return path;
}

std::string decorate(ErrorKind kind, const std::string& message, const std::source_location& place) {
  const Identity& self = identity();
  return std::string(name(kind)) + ": " + message + " [rank " + std::to_string(self.rank) + " of " +
         std::to_string(self.ranks) + " on " + self.host + ", " + shortPath(place.file_name()) + ":" +
         std::to_string(place.line()) + "]";
}

}  // namespace

const char* name(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return "usage error";
    case ErrorKind::badData:
      return "bad data";
    case ErrorKind::file:
      return "file error";
    case ErrorKind::communication:
      return "communication error";
    case ErrorKind::device:
      return "device error";
    case ErrorKind::numeric:
      return "numeric error";
  }
  return "error";
}

int exitCode(ErrorKind kind) {
  switch (kind) {
    case ErrorKind::usage:
      return 2;
    case ErrorKind::badData:
      return 3;
    default:
      return 1;
  }
}

Error::Error(ErrorKind kind, const std::string& message, std::source_location place)
    : std::runtime_error(decorate(kind, message, place)), kind_(kind), message_(message) {}

Error::Error(ErrorKind kind, const std::string& message, const std::string& what, bool onEveryRank)
    : std::runtime_error(what), kind_(kind), message_(message), onEveryRank_(onEveryRank) {}

Error Error::relayed(ErrorKind kind, const std::string& message, const std::string& what, bool onEveryRank) {
  return Error(kind, message, what, onEveryRank);
}

void setIdentity(const Identity& identity) { processIdentity() = identity; }
const Identity& identity() { return processIdentity(); }

std::string systemErrorText(int errorNumber) { return std::generic_category().message(errorNumber); }

void assertionFailed(const char* condition, const std::string& message, std::source_location place) {
  std::fprintf(stderr, "assertion failed: %s (%s) [rank %d on %s, %s:%u]\n", message.c_str(), condition,
               identity().rank, identity().host.c_str(), shortPath(place.file_name()).c_str(), place.line());
  std::abort();
}

}  // namespace tandem::base
