#include "common/base/log.h"

#include <boost/core/null_deleter.hpp>
#include <boost/log/core.hpp>
#include <boost/log/expressions.hpp>
#include <boost/log/sinks/sync_frontend.hpp>
#include <boost/log/sinks/text_ostream_backend.hpp>
#include <boost/log/support/date_time.hpp>
#include <boost/log/utility/setup/common_attributes.hpp>
#include <boost/log/utility/setup/formatter_parser.hpp>
#include <fstream>
#include <iostream>

#include "common/base/error.h"

namespace tandem::base {
namespace {

namespace logging = boost::log;
namespace expressions = boost::log::expressions;
using Sink = logging::sinks::synchronous_sink<logging::sinks::text_ostream_backend>;

// A record is one line: a message with line breaks (a table) is indented, so that every line can still be told apart.
std::string oneRecord(const std::string& message) {
  const std::size_t end = message.find_last_not_of('\n') + 1;
  std::string text;
  for (const char c : message.substr(0, end)) {
    text += c;
    if (c == '\n') text += "    ";
  }
  return text;
}

void format(const logging::record_view& record, logging::formatting_ostream& stream) {
  const auto time = logging::extract<boost::posix_time::ptime>("TimeStamp", record);
  const auto level = record[logging::trivial::severity];
  if (time) {
    const auto clock = time->time_of_day();
    char text[40];
    std::snprintf(text, sizeof text, "%02d:%02d:%02d", static_cast<int>(clock.hours()),
                  static_cast<int>(clock.minutes()), static_cast<int>(clock.seconds()));
    stream << text << ' ';
  }
  stream << level << " [" << identity().rank << "] "
         << oneRecord(record[expressions::smessage] ? *record[expressions::smessage] : std::string()) << '\n';
}

void addSink(const boost::shared_ptr<std::ostream>& stream) {
  auto backend = boost::make_shared<logging::sinks::text_ostream_backend>();
  backend->add_stream(stream);
  // The line's end is part of the record, so that it is one write: ranks share a stderr.
  backend->set_auto_newline_mode(logging::sinks::disabled_auto_newline);
  backend->auto_flush(true);
  auto sink = boost::make_shared<Sink>(backend);
  sink->set_formatter(&format);
  logging::core::get()->add_sink(sink);
}

logging::trivial::severity_level severity(LogLevel level) {
  switch (level) {
    case LogLevel::debug:
      return logging::trivial::debug;
    case LogLevel::info:
      return logging::trivial::info;
    case LogLevel::warning:
      return logging::trivial::warning;
    case LogLevel::error:
      return logging::trivial::error;
  }
  return logging::trivial::info;
}

}  // namespace

LogLevel parseLogLevel(const std::string& text) {
  if (text == "debug") return LogLevel::debug;
  if (text == "info") return LogLevel::info;
  if (text == "warning") return LogLevel::warning;
  if (text == "error") return LogLevel::error;
  throw Error(ErrorKind::usage, "log level '" + text + "' is none of debug, info, warning, error");
}

void startLogging(LogLevel level) {
  logging::core::get()->remove_all_sinks();
  logging::add_common_attributes();
  logging::core::get()->set_filter(logging::trivial::severity >= severity(level));
  addSink(boost::shared_ptr<std::ostream>(&std::clog, boost::null_deleter()));
}

void logToFile(const std::filesystem::path& path) {
  auto stream = boost::make_shared<std::ofstream>(path, std::ios::app);
  if (!*stream) throw Error(ErrorKind::file, "cannot open the log file '" + path.string() + "' for writing");
  addSink(stream);
}

bool logsOnThisRank() { return identity().rank == 0; }

}  // namespace tandem::base
