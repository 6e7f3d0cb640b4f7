#pragma once
// Starts an executable of the build, alone or under mpirun, and keeps what it wrote and how it ended.

#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <stdexcept>
#include <string>

namespace tandem::test {

struct Ended {
  int exitCode = 0;
  std::string output;
  std::string errors;
};

// A folder for this test's files, removed at the end.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string name = (std::filesystem::temp_directory_path() / "tandem-test-XXXXXX").string();
    if (!mkdtemp(name.data())) throw std::runtime_error("no temporary folder can be made");
    path_ = name;
  }
  ~TemporaryFolder() {
    std::error_code ignored;
    std::filesystem::remove_all(path_, ignored);
  }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

// A program that lies beside this one.
inline std::string neighbour(const std::string& name) {
  return (std::filesystem::read_symlink("/proc/self/exe").parent_path() / name).string();
}

// Runs a shell command. It ends with code 124 after a minute.
inline Ended runCommand(const std::string& command) {
  const TemporaryFolder folder;
  const std::string out = (folder.path() / "out").string(), err = (folder.path() / "err").string();
  std::ofstream(folder.path() / "command") << command << '\n';
  const std::string shell =
      "timeout 60 sh " + (folder.path() / "command").string() + " >" + out + " 2>" + err + " </dev/null";
  const int status = std::system(shell.c_str());
  auto content = [](const std::string& path) {
    std::ostringstream text;
    text << std::ifstream(path).rdbuf();
    return text.str();
  };
  return {.exitCode = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status),
          .output = content(out),
          .errors = content(err)};
}

// The command under mpirun on this machine; `environment` is like "NAME=value NAME=value".
inline Ended runRanks(int ranks, const std::string& command, const std::string& environment = "") {
  return runCommand("env OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1 OMPI_MCA_mpi_yield_when_idle=1 " +
                    environment + " mpirun -n " + std::to_string(ranks) + " --oversubscribe --bind-to none " + command);
}

inline int countOf(const std::string& text, const std::string& part) {
  int count = 0;
  for (std::size_t at = text.find(part); at != std::string::npos; at = text.find(part, at + part.size())) ++count;
  return count;
}

}  // namespace tandem::test
