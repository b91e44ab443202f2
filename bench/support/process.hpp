// Other programs that a benchmark starts.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

namespace slip::bench {

// A child process with a pipe from its standard output and, if asked for, one to its standard input. The destructor
// kills it.
class Child {
 public:
  enum class Input { kInherited, kPipe };
  explicit Child(std::vector<std::string> words, Input input = Input::kInherited);
  ~Child();
  Child(const Child&) = delete;
  Child& operator=(const Child&) = delete;

  int to() const { return to_; }  // -1 without a pipe
  int from() const { return from_; }
  bool read(std::string& text) const;  // appends what comes next; false at the end
  std::string read_all() const;
  int status();  // waits for the end; -1 if a signal ended it

 private:
  pid_t pid_ = -1;
  int to_ = -1, from_ = -1, status_ = 0;
};

// What a command of the shell prints.
std::string shell_text(const std::string& command);

}  // namespace slip::bench
