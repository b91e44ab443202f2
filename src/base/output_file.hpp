// A file written whole or not at all. It has no name until it is complete: the bytes go into an unnamed file of the
// same folder (O_TMPFILE), which gets its name at the end, so that a process that is killed leaves nothing behind. On a
// file system that has no such files a file beside the target takes its place. Every write is checked.
//
// "-" is the standard output.
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
  bool open_unnamed();
  void name_it();

  std::string path_;     // as asked for, for messages
  std::string target_;   // where it will be, links followed
  std::string written_;  // the file beside the target; empty: unnamed, a device, a pipe, or the standard output
  Here here_;
  int file_ = -1;
  bool unnamed_ = false;
};

// Throws what OutputFile would throw for this path, and leaves no file: for a check before long work. A pipe is not
// opened, because its reader would take the end of the check for the end of the data.
void check_output_path(const std::string& path, Here here);

// From now on what this process prints is dropped, and only OutputFile("-") writes to the standard output. The caller
// has printed nothing yet.
void reserve_standard_output();

}  // namespace slip
