#include "transport/segment.hpp"

#include <fmt/format.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <utility>

#include "base/clock.hpp"
#include "base/fork_mutex.hpp"
#include "transport/secret.hpp"

namespace slip {
namespace {

constexpr std::uint64_t kTag = 0x5e93e17;
constexpr std::int64_t kPatienceNs = 60'000'000'000;

// A descriptor, closed with the object.
class Descriptor {
 public:
  explicit Descriptor(int number) : number_(number) {}
  ~Descriptor() {
    if (number_ >= 0) ::close(number_);
  }
  Descriptor(const Descriptor&) = delete;
  Descriptor& operator=(const Descriptor&) = delete;
  int number() const { return number_; }

 private:
  const int number_;
};

[[noreturn]] void fail(const char* what, std::size_t bytes) {
  throw Error(errno == ENOMEM ? Code::kOutOfMemory : Code::kIo,
              fmt::format("cannot {} {} bytes of shared memory: {}", what, bytes, std::strerror(errno)), {});
}

// One byte with the descriptor beside it.
struct Parcel {
  char byte = 0;
  iovec vector{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};

  Parcel() {
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
};

void send_descriptor(const Socket& socket, int descriptor, const Patience& patience) {
  Parcel parcel;
  cmsghdr* const header = CMSG_FIRSTHDR(&parcel.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  while (::sendmsg(socket.descriptor(), &parcel.message, MSG_NOSIGNAL) != 1) {
    if (errno != EAGAIN && errno != EINTR) fail("hand over", 0);
    if (wait_for(socket.descriptor(), POLLOUT, patience) != Waited::kReady)
      throw Error(Code::kTimeout, fmt::format("shared memory could not be handed over: {}", socket.text()), {});
  }
}

int recv_descriptor(const Socket& socket, const Patience& patience) {
  Parcel parcel;
  for (;;) {
    const ssize_t got = ::recvmsg(socket.descriptor(), &parcel.message, MSG_CMSG_CLOEXEC);
    if (got == 1) break;
    if (got == 0)
      throw Error(Code::kRankLost, fmt::format("who makes the shared memory has left: {}", socket.text()), {});
    if (errno != EAGAIN && errno != EINTR) fail("receive", 0);
    if (wait_for(socket.descriptor(), POLLIN, patience) != Waited::kReady)
      throw Error(Code::kTimeout, fmt::format("no shared memory was handed over: {}", socket.text()), {});
  }
  const cmsghdr* const header = CMSG_FIRSTHDR(&parcel.message);
  if (!header || header->cmsg_type != SCM_RIGHTS) throw Error(Code::kIo, "shared memory came without a descriptor", {});
  int descriptor = -1;
  std::memcpy(&descriptor, CMSG_DATA(header), sizeof(int));
  return descriptor;
}

}  // namespace

Segment::Mapping::Mapping(int descriptor, std::size_t size) : bytes(size) {
  void* const made = ::mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor, 0);
  if (made == MAP_FAILED) fail("map", bytes);
  data = static_cast<std::byte*>(made);
}

Segment::Mapping::~Mapping() { ::munmap(data, bytes); }

// The name is of this memory alone: who has it already in this process shares its mapping.
Segment Segment::map(const std::string& name, int descriptor, std::size_t bytes) {
  static ForkMutex mutex;
  static std::map<std::string, std::weak_ptr<const Mapping>> known;  // guarded by mutex
  const std::lock_guard lock(mutex);
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  Segment result;
  std::weak_ptr<const Mapping>& there = known[name];
  result.mapping_ = there.lock();
  if (!result.mapping_) there = result.mapping_ = std::make_shared<const Mapping>(descriptor, bytes);
  return result;
}

void Segment::commit(std::size_t offset, std::size_t bytes) const {
  // EINVAL: a kernel before 5.14, which takes memory as it is touched.
  if (bytes > 0 && ::madvise(data() + offset, bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
    throw Error(Code::kOutOfMemory,
                fmt::format("the system has no {} bytes for shared memory: {}", bytes, std::strerror(errno)), {});
  }
}

void Segment::drop(std::size_t offset, std::size_t bytes) const noexcept {
  if (bytes > 0) ::madvise(data() + offset, bytes, MADV_REMOVE);  // failed: it goes with the segment
}

// The first rank listens under a name that nobody can guess, and tells it to the others.
Segment Segment::share(Bootstrap& bootstrap, std::span<const int> ranks, std::size_t bytes) {
  const Patience patience{now_ns() + kPatienceNs, &bootstrap.abort_flag()};
  if (bootstrap.rank() != ranks.front()) {
    const std::vector<std::byte> name = bootstrap.recv(ranks.front(), kTag);
    const std::string text(reinterpret_cast<const char*>(name.data()), name.size());
    const Socket socket = Socket::connect(SocketAddress::unix_name(text), patience);
    const Descriptor descriptor(recv_descriptor(socket, patience));
    return map(text, descriptor.number(), bytes);
  }
  const Descriptor descriptor(::memfd_create("slipstream", MFD_CLOEXEC));
  if (descriptor.number() < 0 || ::ftruncate(descriptor.number(), static_cast<off_t>(bytes)) != 0) fail("make", bytes);
  const std::string name = fmt::format("slip-{:016x}{:016x}", random_secret(), random_secret());
  Segment made = map(name, descriptor.number(), bytes);
  const Socket listener = Socket::listen(SocketAddress::unix_name(name));
  for (const int rank : ranks.subspan(1)) bootstrap.send(rank, kTag, std::as_bytes(std::span(name)));
  for (std::size_t served = 1; served < ranks.size();) {
    const Socket socket = listener.accept(patience);
    if (!socket.same_user()) continue;
    send_descriptor(socket, descriptor.number(), patience);
    ++served;
  }
  return made;
}

}  // namespace slip
