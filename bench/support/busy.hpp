// Other work for the cores, for benchmarks that measure on a machine that is not idle.
#pragma once

#include <sys/types.h>

#include <cstddef>
#include <vector>

namespace slip::bench {

// One process per core that this process may use, pinned to it, with one thread that never sleeps, at the priority of
// this process. They end with this object, or with the process that made it, however that ends.
class BusyProcesses {
 public:
  BusyProcesses();  // throws std::runtime_error if one cannot be started
  ~BusyProcesses();
  BusyProcesses(const BusyProcesses&) = delete;
  BusyProcesses& operator=(const BusyProcesses&) = delete;

  std::size_t count() const { return processes_.size(); }

 private:
  void end();

  std::vector<pid_t> processes_;
};

}  // namespace slip::bench
