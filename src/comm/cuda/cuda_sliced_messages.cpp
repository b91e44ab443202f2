#include "comm/cuda/cuda_sliced_messages.hpp"

#include "comm/cuda/cuda_driver.hpp"

namespace slip::comm {

SlicedMessages::SlicedMessages(Setup setup) : setup_(std::move(setup)), copied_(setup_.controls.size()) {}

const MessageBox& SlicedMessages::box(const DeviceMessage& message) const {
  return message.sends != 0 ? setup_.shared->box(setup_.rank, message.rank)
                            : setup_.shared->box(message.rank, setup_.rank);
}

void SlicedMessages::put_round(std::span<const DeviceMessage> round, cudaStream_t stream,
                               const LaunchKernel& launch_kernel) {
  std::vector<DeviceMessage> copied;
  std::vector<MemoryOperation> offers, waits, ends;
  for (const DeviceMessage& message : round) {
    const MessageBox& box = this->box(message);
    if (copies(message.rank, message.sends != 0)) {
      offers.push_back(write_64(&box.expected, message.bytes + 1));
      waits.push_back(wait_for_64(&box.offered, message.bytes + 1));
      waits.push_back(write_64(&box.expected, 0));
      waits.push_back(write_64(&box.offered, 0));
      copied.push_back(message);
    } else {
      const MessageSlot& there =
          setup_.controls[message.rank]->messages[setup_.rank][message.sends != 0 ? kSendOffer : kReceiveOffer];
      offers.push_back(write_64(&there.address, message.address));
      offers.push_back(write_64(&there.bytes, message.bytes));
      offers.push_back(write_32(&box.in_use, 1));
      offers.push_back(write_64(&box.offered, message.bytes + 1));
      ends.push_back(wait_for_32(&box.in_use, 0));
    }
  }
  offers.insert(offers.end(), waits.begin(), waits.end());
  put_memory_operations(stream, offers, setup_.gpu);
  if (!copied.empty()) {
    launch_kernel(copied);
    std::vector<MemoryOperation> done;
    for (const DeviceMessage& message : copied) {
      done.push_back(write_32(&box(message).copied, ++copied_[message.rank]));
      done.push_back(write_32(&box(message).in_use, 0));
    }
    put_memory_operations(stream, done, setup_.gpu);
  }
  put_memory_operations(stream, ends, setup_.gpu);
}

}  // namespace slip::comm
