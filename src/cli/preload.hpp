// The option --nccl of `slip launch`: programs made for NCCL get Slipstream's libnccl.so.2.
#pragma once

#include <map>
#include <string>

namespace slip::cli {

// Adds our library of this host to LD_PRELOAD among the changed variables. Throws kIo if it is not there.
void preload_nccl(std::map<std::string, std::string>& changes);

}  // namespace slip::cli
