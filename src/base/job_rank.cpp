#include "base/job_rank.hpp"

#include <charconv>

#include "base/env.hpp"

namespace slip {
namespace {

// In the order in which transport/launch_info looks for them. Without `marker`, the others are not the launcher's.
struct Launcher {
  const char* marker;
  const char* rank;
  const char* ranks;
};
constexpr Launcher kLaunchers[] = {
    {"SLIP_RANK", "SLIP_RANK", "SLIP_NRANKS"},
    {"MASTER_ADDR", "RANK", "WORLD_SIZE"},
    {"OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE"},
    {"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_STEP_NUM_TASKS"},
    {"SLURM_STEP_ID", "SLURM_PROCID", "SLURM_NTASKS"},
};

std::optional<int> number_of(const std::string& text) {
  int value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size() || value < 0) return std::nullopt;
  return value;
}

}  // namespace

std::optional<JobRank> read_job_rank(const std::function<std::string(const char*)>& variables) {
  for (const Launcher& launcher : kLaunchers) {
    if (variables(launcher.marker).empty()) continue;
    const std::optional<int> rank = number_of(variables(launcher.rank)), ranks = number_of(variables(launcher.ranks));
    if (rank && ranks && *rank < *ranks) return JobRank{*rank, *ranks};
  }
  return std::nullopt;
}

std::optional<JobRank> job_rank() {
  return read_job_rank([](const char* name) { return env_text(name); });
}

}  // namespace slip
