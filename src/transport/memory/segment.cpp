#include "transport/memory/segment.hpp"

#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "base/fail.hpp"
#include "base/thread.hpp"
#include "transport/bootstrap/secret.hpp"
#include "transport/job/placement.hpp"

namespace slip::transport {
namespace {

constexpr std::uint64_t kTag = 0x5e93e17;  // of the bootstrap message that has the name of the socket

[[noreturn]] void fail(const char* what, std::size_t bytes) {
  const int error = errno;
  const std::string text = fmt::format("cannot {} {} bytes of shared memory", what, bytes);
  if (error != ENOMEM) base::fail_errno(text, error);
  base::fail(ErrorCode::kOutOfMemory, {}, "{}: {}", text, std::strerror(error));
}

// A message of one byte that carries a file descriptor.
struct DescriptorMessage {
  char byte = 0;
  iovec vector{&byte, 1};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};

  DescriptorMessage() {
    message.msg_iov = &vector;
    message.msg_iovlen = 1;
    message.msg_control = control;
    message.msg_controllen = sizeof(control);
  }
};

// The errors of the next three functions do not name the other rank: take() adds it.
void await(const Socket& socket, short events, const Deadline& deadline) {
  const Waited waited = wait_for(socket.descriptor(), events, deadline);
  if (waited == Waited::kTimeout) base::fail(ErrorCode::kTimeout, {}, "the deadline has passed");
  if (waited == Waited::kAborted) base::fail(ErrorCode::kAborted, {}, "aborted");
}

void send_descriptor(const Socket& socket, int descriptor, const Deadline& deadline) {
  DescriptorMessage carrier;
  cmsghdr* const header = CMSG_FIRSTHDR(&carrier.message);
  header->cmsg_level = SOL_SOCKET;
  header->cmsg_type = SCM_RIGHTS;
  header->cmsg_len = CMSG_LEN(sizeof(int));
  std::memcpy(CMSG_DATA(header), &descriptor, sizeof(int));
  while (::sendmsg(socket.descriptor(), &carrier.message, MSG_NOSIGNAL) != 1) {
    if (errno != EAGAIN && errno != EINTR)
      base::fail(ErrorCode::kIo, {}, "cannot send a descriptor: {}", std::strerror(errno));
    await(socket, POLLOUT, deadline);
  }
}

int recv_descriptor(const Socket& socket, const Deadline& deadline) {
  DescriptorMessage carrier;
  for (;;) {
    const ssize_t got = ::recvmsg(socket.descriptor(), &carrier.message, MSG_CMSG_CLOEXEC);
    if (got == 1) break;
    if (got == 0) base::fail(ErrorCode::kIo, {}, "its connection closed");
    if (errno != EAGAIN && errno != EINTR)
      base::fail(ErrorCode::kIo, {}, "cannot receive a descriptor: {}", std::strerror(errno));
    await(socket, POLLIN, deadline);
  }
  const cmsghdr* const header = CMSG_FIRSTHDR(&carrier.message);
  if (!header || header->cmsg_type != SCM_RIGHTS) {
    // MSG_CTRUNC: the kernel could not make a descriptor in this process.
    if ((carrier.message.msg_flags & MSG_CTRUNC) != 0) base::fail_errno("cannot receive a descriptor", EMFILE);
    base::fail(ErrorCode::kIo, {}, "its message has no descriptor");
  }
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

// Ranks of one process find an existing mapping by the segment's name, and share that mapping.
Segment Segment::map(const std::string& name, int descriptor, std::size_t bytes) {
  struct Mappings {
    base::ForkMutex mutex;
    std::map<std::string, std::weak_ptr<const Mapping>> known SLIP_GUARDED_BY(mutex);
  };
  Mappings& mappings = base::process_wide<Mappings>();
  const base::LockGuard lock(mappings.mutex);
  std::map<std::string, std::weak_ptr<const Mapping>>& known = mappings.known;
  std::erase_if(known, [](const auto& entry) { return entry.second.expired(); });
  Segment result;
  std::weak_ptr<const Mapping>& there = known[name];
  result.mapping_ = there.lock();
  if (!result.mapping_) there = result.mapping_ = std::make_shared<const Mapping>(descriptor, bytes);
  return result;
}

void Segment::commit(std::size_t offset, std::size_t bytes) const {
  // EINVAL: a kernel before 5.14 has no MADV_POPULATE_WRITE; it allocates the pages when they are touched.
  if (bytes > 0 && ::madvise(data() + offset, bytes, MADV_POPULATE_WRITE) != 0 && errno != EINVAL) {
    base::fail(ErrorCode::kOutOfMemory, {}, "the system has no {} bytes for shared memory: {}", bytes,
               std::strerror(errno));
  }
}

void Segment::drop(std::size_t offset, std::size_t bytes) const noexcept {
  if (bytes > 0) ::madvise(data() + offset, bytes, MADV_REMOVE);  // if it fails, the memory is freed with the segment
}

// The first rank listens on an abstract Unix socket with a unique name and sends the name to the other ranks. Each of
// them connects and sends its rank, so the first rank knows which ranks are missing. Any user may bind or connect to an
// abstract name. So both ends check that the peer belongs to the same user before they send or read anything.
Segment Segment::make(Bootstrap& bootstrap, std::span<const int> ranks, std::size_t bytes, const SetupCall& call) {
  const Deadline deadline{call.deadline_ns, &bootstrap.broken_flag()};
  const OwnedDescriptor descriptor(::memfd_create("slipstream", MFD_CLOEXEC));
  if (descriptor.number() < 0 || ::ftruncate(descriptor.number(), static_cast<off_t>(bytes)) != 0) fail("make", bytes);
  const std::string name = "slip-" + random_name();
  Segment made = map(name, descriptor.number(), bytes);
  const Socket listener = Socket::listen(SocketAddress::unix_name(name));
  std::set<int> absent(ranks.begin() + 1, ranks.end());
  for (const int rank : absent) bootstrap.send(rank, kTag, std::as_bytes(std::span(name)), call);
  while (!absent.empty()) {
    Socket socket;
    try {
      socket = listener.accept(deadline);
      if (!socket.same_user()) continue;
      std::int32_t rank = -1;
      socket.recv(std::as_writable_bytes(std::span(&rank, 1)), deadline);
      if (!absent.contains(rank)) continue;
      send_descriptor(socket, descriptor.number(), deadline);
      absent.erase(rank);
    } catch (const Error& error) {
      // kIo with a socket: the peer closed the connection. If the peer was a rank, the failure detector reports its
      // loss. Without a socket accept() failed, and would fail for ever.
      if (error.code() == ErrorCode::kIo && socket.valid()) continue;
      if (error.code() != ErrorCode::kTimeout) throw;
      base::fail(ErrorCode::kTimeout, {}, "{}: {} did not take the shared memory of {} before the deadline",
                 bootstrap.self().text(), rank_list(std::vector<int>(absent.begin(), absent.end())),
                 setup_name(call.kind));
    }
  }
  return made;
}

Segment Segment::take(Bootstrap& bootstrap, int maker, std::size_t bytes, const SetupCall& call) {
  const Deadline deadline{call.deadline_ns, &bootstrap.broken_flag()};
  const std::string name = text_of(bootstrap.recv(maker, kTag, call));
  try {
    const Socket socket = Socket::connect(SocketAddress::unix_name(name), deadline);
    if (!socket.same_user()) base::fail(ErrorCode::kIo, {}, "its name is held by a process of another user");
    const std::int32_t rank = bootstrap.rank();
    socket.send(std::as_bytes(std::span(&rank, 1)), deadline);
    const OwnedDescriptor descriptor(recv_descriptor(socket, deadline));
    return map(name, descriptor.number(), bytes);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kAborted || error.code() == ErrorCode::kOutOfMemory) throw;
    base::fail(error.code() == ErrorCode::kIo ? ErrorCode::kRankLost : error.code(), {},
               "{}: rank {} did not hand over the shared memory of {}: {}", bootstrap.self().text(), maker,
               setup_name(call.kind), base::bare_text(error));
  }
}

Segment Segment::share(Bootstrap& bootstrap, std::span<const int> ranks, std::size_t bytes, const SetupCall& asked) {
  const SetupCall call = bootstrap.call_of(asked);
  try {
    return bootstrap.rank() == ranks.front() ? make(bootstrap, ranks, bytes, call)
                                             : take(bootstrap, ranks.front(), bytes, call);
  } catch (const Error& error) {
    if (error.code() == ErrorCode::kOutOfMemory)
      bootstrap.failures().fail(error.code(), base::bare_text(error));  // so that the other ranks do not wait
    throw bootstrap.with_cause(error);
  }
}

bool read_process(std::int32_t pid, std::uint64_t address, void* to, std::size_t bytes) noexcept {
  auto* place = static_cast<std::byte*>(to);
  while (bytes > 0) {
    const iovec here{place, bytes}, there{reinterpret_cast<void*>(address), bytes};
    const ssize_t got = ::process_vm_readv(pid, &here, 1, &there, 1, 0);
    if (got <= 0) return false;
    place += got;
    address += static_cast<std::uint64_t>(got);
    bytes -= static_cast<std::size_t>(got);
  }
  return true;
}

}  // namespace slip::transport
