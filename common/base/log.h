#pragma once
// Logging through Boost.Log: one line a record, with time, level and rank, on stderr and in a file when asked.
//
// Rank 0 alone speaks by default; records that only another rank can give use TANDEM_LOG_ALL.

#include <boost/log/sources/severity_logger.hpp>
#include <boost/log/trivial.hpp>
#include <filesystem>
#include <string>

namespace tandem::base {

enum class LogLevel { debug, info, warning, error };

// Throws Error of kind usage for a name that is none of debug, info, warning, error.
LogLevel parseLogLevel(const std::string& text);

// Starts logging to stderr. Without a call, records go to Boost.Log's default sink.
void startLogging(LogLevel level);

// Also appends every record of this process to a file. Throws Error of kind file when it can't be opened.
void logToFile(const std::filesystem::path& path);

bool logsOnThisRank();

}  // namespace tandem::base

// TANDEM_LOG(info) << "text"; levels: debug, info, warning, error. Written by rank 0 only.
#define TANDEM_LOG(level)                     \
  if (!::tandem::base::logsOnThisRank()) { \
  } else                                      \
    BOOST_LOG_TRIVIAL(level)

// The same on whatever rank it stands.
#define TANDEM_LOG_ALL(level) BOOST_LOG_TRIVIAL(level)
