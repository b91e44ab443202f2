// Errors of system calls that make descriptors. If the process has none left, the error names its limit and how to
// raise it.
#pragma once

#include <string>

#include "base/fail.hpp"

namespace slip::base {

// The process or the host has no descriptors left. A caller that knows the number that is needed adds it.
class TooManyFiles : public Error {
 public:
  using Error::Error;
};

// Throws kIo with "what: the text of the errno"; TooManyFiles for EMFILE and ENFILE.
[[noreturn]] void fail_errno(const std::string& what, int error);
bool is_out_of_descriptors(int error);

}  // namespace slip::base
