// Which program this is.
#pragma once

#include <string>

namespace slip::cli {

// Of the source tree when the program was built: "1a2b3c4d5e6f", "... with changes", or "unknown" without git.
extern const char* const kCommit;

std::string version_text();  // "slip 0.1.0, commit 1a2b3c4d5e6f, CUDA: no"

}  // namespace slip::cli
