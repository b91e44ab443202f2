// The machine and the build of a result.
#pragma once

#include <string>

namespace slip::bench {

struct MachineInfo {
  std::string cpu_model;
  unsigned cores = 0;
  std::string arch;
  std::string kernel;
  std::string compiler;
  std::string date;         // ISO 8601, UTC
  std::string git_commit;   // empty when unknown
  double load_average = 0;  // over one minute, before the run: a busy machine explains odd numbers
};

MachineInfo read_machine_info();

}  // namespace slip::bench
