// A file written whole or not at all: into a file beside it, which takes its place at the end. Every write is checked.
#pragma once

#include <string>
#include <string_view>

#include "slip/error.hpp"

namespace slip {

class OutputFile {
 public:
  OutputFile(const std::string& path, Here here);
  ~OutputFile();  // not finished: removes what was written
  OutputFile(const OutputFile&) = delete;
  OutputFile& operator=(const OutputFile&) = delete;

  void write(std::string_view text);
  void finish();

 private:
  [[noreturn]] void fail(const char* what, int error) const;

  std::string path_;     // as asked for, for messages
  std::string target_;   // where it will be, links followed
  std::string written_;  // what is being written; equal to target_ for devices and pipes, which nothing may replace
  Here here_;
  int file_ = -1;
};

}  // namespace slip
