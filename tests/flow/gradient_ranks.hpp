// Ranks for tests of Gradients: each is a thread with a device, a communicator and a compute stream.
#pragma once

#include <functional>
#include <vector>

#include "slip/gradients.hpp"
#include "support/ranks.hpp"

namespace slip::test {

struct Trainer {
  Communicator& comm;
  Device device;
  Stream compute;
  int rank() const { return comm.rank(); }
  int nranks() const { return comm.nranks(); }
};

inline std::vector<Met> as_trainers(int count, const std::function<void(Trainer&)>& body,
                                    CommunicatorOptions options = {}) {
  std::vector<Device> devices;
  for (int i = 0; i < count; ++i) devices.push_back(Device::open("cpu", {.compute_workers = 2}));
  if (options.timeout > std::chrono::seconds(60)) options.timeout = std::chrono::seconds(60);
  std::vector<Communicator> comms = Communicator::init_all(devices, options);
  // If a rank fails, its communicator notifies the other ranks, so that they do not wait.
  return as_ranks(count, [&](int index) {
    const auto i = static_cast<std::size_t>(index);
    Trainer trainer{comms[i], devices[i], devices[i].stream(StreamFlags::kNonBlocking)};
    body(trainer);
  });
}

// out[i] = scalar + i
inline const Kernel kCount{"count", [](const Args& args) {
                             const std::span<float> out = args.out<float>(0);
                             const auto first = args.scalar<float>(0);
                             for (std::size_t i = 0; i < out.size(); ++i) out[i] = first + static_cast<float>(i % 1000);
                           }};
// out += scalar
inline const Kernel kAdd{"add", [](const Args& args) {
                           for (float& value : args.out<float>(0)) value += args.scalar<float>(0);
                         }};
// out = in
inline const Kernel kKeep{"keep", [](const Args& args) {
                            const std::span<const float> in = args.in<float>(0);
                            std::copy(in.begin(), in.end(), args.out<float>(0).begin());
                          }};

// Some f32 parameters. An "optimizer" copies the reduced gradient of each into a buffer.
class Network {
 public:
  Network(Trainer& trainer, const std::vector<std::size_t>& elements, GradientOptions options = {})
      : trainer_(trainer), gradients(trainer.comm, trainer.device, std::move(options)) {
    for (std::size_t i = 0; i < elements.size(); ++i) {
      parameters.push_back(gradients.add("layer" + std::to_string(i), elements[i] * sizeof(float), DataType::kF32));
      kept.push_back(trainer.device.alloc(elements[i] * sizeof(float), MemoryKind::kPinned, "kept"));
    }
    gradients.seal();
  }

  static float value(int rank, std::size_t parameter, int step) {
    return static_cast<float>(rank + 1) * 0.25F + static_cast<float>(parameter) + static_cast<float>(step) * 2;
  }
  void backward(std::size_t parameter, int step) {
    const Range view = gradients.view(parameters[parameter]);
    trainer_.compute.launch(kCount, {.writes = {view}, .scalars = {value(trainer_.rank(), parameter, step)}});
    gradients.ready(parameters[parameter], trainer_.compute);
  }
  void optimize(std::size_t parameter) {
    gradients.wait(parameters[parameter], trainer_.compute);
    trainer_.compute.launch(kKeep, {.reads = {gradients.view(parameters[parameter])}, .writes = {kept[parameter]}});
  }
  // Gradients become ready in the given order; by default the last parameter first.
  void run_step(int step, const std::vector<std::size_t>& order = {}) {
    if (order.empty()) {
      for (std::size_t i = parameters.size(); i-- > 0;) backward(i, step);
    } else {
      for (const std::size_t i : order) backward(i, step);
    }
    for (std::size_t i = 0; i < parameters.size(); ++i) optimize(i);
    gradients.step_end();
  }
  // Expects the average, with the addition in the order of the ranks, in the buffers.
  void expect_average(int step) {
    trainer_.compute.sync();
    for (std::size_t parameter = 0; parameter < parameters.size(); ++parameter) {
      const HostView<const float> values = kept[parameter].host_read<float>();
      for (std::size_t i = 0; i < values.size(); ++i) {
        float sum = 0;
        for (int rank = 0; rank < trainer_.nranks(); ++rank)
          sum += value(rank, parameter, step) + static_cast<float>(i % 1000);
        ASSERT_EQ(values[i], sum / static_cast<float>(trainer_.nranks()))
            << "parameter " << parameter << " element " << i << " step " << step << " rank " << trainer_.rank();
      }
    }
  }

 private:
  Trainer& trainer_;

 public:
  Gradients gradients;
  std::vector<ParameterId> parameters;
  std::vector<Buffer> kept;
};

}  // namespace slip::test
