#include "flow/gradients/gather_texts.hpp"

#include <algorithm>
#include <cstring>

namespace slip {

std::vector<std::string> gather_texts(Communicator& comm, const Device& device, StreamRef stream,
                                      const std::string& own, Here here) {
  const auto ranks = static_cast<std::size_t>(comm.nranks());
  Buffer size = device.alloc(8, MemoryKind::kPinned, "size of a text", here);
  Buffer sizes = device.alloc(8 * ranks, MemoryKind::kPinned, "sizes of texts", here);
  size.host_write<std::uint64_t>()[0] = own.size();
  comm.all_gather(sizes, size, stream, here);
  stream.sync(here);
  std::vector<std::uint64_t> lengths;
  for (const std::uint64_t length : sizes.host_read<std::uint64_t>()) lengths.push_back(length);
  if (lengths[static_cast<std::size_t>(comm.rank())] != own.size())
    throw Error(Code::kUnsupported, "ranks cannot tell each other anything on devices that run no functions", here);
  const std::size_t most = std::max<std::size_t>(*std::max_element(lengths.begin(), lengths.end()), 1);
  Buffer text = device.alloc(most, MemoryKind::kPinned, "text", here);
  Buffer all = device.alloc(most * ranks, MemoryKind::kPinned, "texts", here);
  std::memcpy(text.host_write<char>().begin(), own.data(), own.size());
  comm.all_gather(all, text, stream, here);
  stream.sync(here);
  std::vector<std::string> texts;
  const HostView<const char> view = all.host_read<char>();
  for (std::size_t rank = 0; rank < ranks; ++rank) texts.emplace_back(view.begin() + most * rank, lengths[rank]);
  return texts;
}

}  // namespace slip
