// The parameters of a Gradients object, their layout in memory, and the check that all ranks have the same.
#pragma once

#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "slip/gradients.hpp"

namespace slip::flow {

// If the ranks on a GPU are threads of one process, the kernel of a call waits there for the kernels of the other
// ranks. Some calls of the driver wait until the GPU is idle: opening a stream, loading a kernel, allocating and
// freeing memory. If one rank makes such a call while the kernel of another rank waits for it, both wait for ever. So
// Gradients makes these calls between two meetings of the ranks' threads, and no call of the communicator runs
// meanwhile.
bool on_gpu(const Device& device);

// Returns when all ranks have called it. Only on GPUs: on other devices it does nothing.
void meet_on_gpu(Communicator& comm, const Device& device, Here here);

struct Parameter {
  std::string name;
  std::uint64_t bytes = 0;
  DataType type = DataType::kF32;
  std::string text() const;  // "'fc.weight' (4096 bytes of F32)"
};

class ParameterList {
 public:
  std::uint32_t add(std::string_view name, std::uint64_t bytes, DataType type, Here here);
  std::size_t size() const { return list_.size(); }
  const Parameter& operator[](std::size_t index) const { return list_[index]; }
  auto begin() const { return list_.begin(); }
  auto end() const { return list_.end(); }

 private:
  std::vector<Parameter> list_;
  std::unordered_map<std::string, std::uint32_t> by_name_;
};

// All ranks call it. If parameters or options differ, it throws kMismatch on all of them, with the ranks and both
// values of the first difference.
void require_same(const ParameterList& parameters, const GradientOptions& options, Communicator& comm,
                  const Device& device, StreamRef stream, Here here);

// The position of each gradient in memory. Gradients of one data type are neighbours, in the order of arrival. Each is
// aligned to a cache line.
class GradientLayout {
 public:
  static constexpr std::uint64_t kLine = 64;

  GradientLayout() = default;
  // `arrival`: parameters in the order in which their gradients arrive.
  GradientLayout(const ParameterList& parameters, const std::vector<std::uint32_t>& arrival);

  const std::vector<std::uint32_t>& order() const { return order_; }  // parameters, as they lie in memory
  std::uint64_t first(std::uint32_t parameter) const { return firsts_[parameter]; }
  std::uint64_t bytes() const { return bytes_; }
  DataType type_at(std::uint64_t byte) const;

  // The sizes of the gradients, rounded up to whole cache lines, as they lie in memory; its times are 0.
  const GradientProfile& profile() const { return profile_; }

 private:
  struct Section {
    DataType type = DataType::kF32;
    std::uint64_t first = 0;
  };
  std::vector<std::uint32_t> order_;
  std::vector<std::uint64_t> firsts_;  // by parameter
  GradientProfile profile_;            // its groups are indices into sections_
  std::vector<Section> sections_;
  std::uint64_t bytes_ = 0;
};

}  // namespace slip::flow
