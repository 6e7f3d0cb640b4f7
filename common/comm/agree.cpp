#include <sys/resource.h>

#include <filesystem>
#include <new>

#include "common/base/units.h"
#include "common/comm/communicator.h"

namespace tandem::comm {
namespace {

std::int64_t peakMemoryBytes() {
  struct rusage usage {};
  getrusage(RUSAGE_SELF, &usage);
  return std::int64_t{usage.ru_maxrss} * 1024;
}

}  // namespace

base::Error asError(std::exception_ptr exception) {
  using base::Error;
  using base::ErrorKind;
  try {
    std::rethrow_exception(exception);
  } catch (const Error& error) {
    return error;
  } catch (const std::bad_alloc&) {
    return Error(ErrorKind::device, "out of memory: the system refused an allocation while this process held up to " +
                                        base::formatBytes(peakMemoryBytes()) +
                                        "; make the work of a rank smaller or use more hosts");
  } catch (const std::filesystem::filesystem_error& error) {
    return Error(ErrorKind::file, error.what());
  } catch (const std::exception& error) {
    return Error(ErrorKind::device, std::string("unexpected failure: ") + error.what());
  } catch (...) {
    return Error(ErrorKind::device, "unexpected failure of a kind that carries no message");
  }
}

void agree(Communicator& communicator, const std::optional<base::Error>& error) {
  const std::int64_t none = communicator.size();
  const std::int64_t mine = error ? communicator.rank() : none;
  const std::int64_t lowest = allReduceScalar(communicator, mine, Reduction::minimum);
  if (lowest == none) return;
  const int root = static_cast<int>(lowest);
  auto kind = static_cast<std::int64_t>(error ? error->kind() : base::ErrorKind::communication);
  communicator.broadcast({.data = &kind, .type = base::DType::i64, .count = 1}, root);
  const std::string message = broadcastText(communicator, error ? error->message() : "", root);
  const std::string what = broadcastText(communicator, error ? error->what() : "", root);
  const bool onEveryRank = communicator.size() == base::identity().ranks;
  throw base::Error::relayed(static_cast<base::ErrorKind>(kind), message, what, onEveryRank);
}

}  // namespace tandem::comm
