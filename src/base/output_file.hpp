// OutputFile: a file that is written completely or not at all. The bytes go into an unnamed file of the same folder
// (O_TMPFILE), which gets its name in finish(). So a process that is killed before finish() leaves nothing behind. On
// file systems without O_TMPFILE, a temporary file in the same folder is used; a killed process leaves that one behind.
// Pipes, devices and the standard output, whose path is "-", are written directly. Every failure throws kIo.
#pragma once

#include <string>
#include <string_view>

#include "base/sync.hpp"
#include "slip/error.hpp"

namespace slip::base {

class OutputFile : NoCopy {
 public:
  OutputFile(const std::string& path, Here here);
  ~OutputFile();  // without finish(): removes the temporary file

  void write(std::string_view text);
  void finish();

 private:
  [[noreturn]] void fail(const char* what, int error) const;
  bool open_unnamed();
  void give_temporary_name();

  std::string path_;       // as given, for messages
  std::string target_;     // the final path, with symbolic links resolved
  std::string temporary_;  // path of the temporary file; empty: unnamed, a device, a pipe, or the standard output
  Here here_;
  int file_ = -1;
  bool unnamed_ = false;  // opened with O_TMPFILE
};

void write_file(const std::string& path, std::string_view text, Here here);

// Writes the whole text to a descriptor, also if signals interrupt it. False: it failed, and errno says why.
bool write_all(int file, std::string_view text);

// Throws if OutputFile would throw for this path, and leaves no file. Call it before a long computation. It does not
// open a pipe, because the pipe's reader would see the end of the data when the check closes it.
void check_output_path(const std::string& path, Here here);

// From now on only OutputFile("-") writes to the standard output, and everything else that the process prints to it is
// discarded. REQUIRES: nothing was printed yet.
void reserve_standard_output();

}  // namespace slip::base
