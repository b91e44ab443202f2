#include "comm/delegate/nccl_library.hpp"

#include <dlfcn.h>
#include <elf.h>
#include <fmt/format.h>
#include <link.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <map>
#include <memory>
#include <optional>
#include <type_traits>
#include <vector>

#include "base/sync.hpp"

namespace slip::comm {
namespace {

constexpr const char* kName = "libnccl.so.2";
// The name of the ELF note by which Slipstream's libnccl.so.2 can be recognised (src/nccl/errors.cpp).
constexpr std::string_view kOwnNote = "Slipstream";

// Whether a note of this segment has the name kOwnNote.
bool has_own_note(const std::byte* at, std::size_t bytes) {
  const auto padded = [](std::size_t size) { return (size + 3) / 4 * 4; };
  while (bytes >= sizeof(ElfW(Nhdr))) {
    ElfW(Nhdr) note;
    std::memcpy(&note, at, sizeof(note));
    const std::size_t whole = sizeof(note) + padded(note.n_namesz) + padded(note.n_descsz);
    if (whole > bytes) return false;
    const std::string_view name(reinterpret_cast<const char*>(at) + sizeof(note), note.n_namesz);
    if (name.substr(0, name.find('\0')) == kOwnNote) return true;
    at += whole;
    bytes -= whole;
  }
  return false;
}

struct NoteSearch {
  ElfW(Addr) base = 0;
  bool found = false;
};

int search_notes(dl_phdr_info* library, std::size_t, void* data) {
  auto& search = *static_cast<NoteSearch*>(data);
  if (library->dlpi_addr != search.base) return 0;
  for (int i = 0; i < library->dlpi_phnum; ++i) {
    const ElfW(Phdr)& segment = library->dlpi_phdr[i];
    if (segment.p_type != PT_NOTE) continue;
    const auto* const at = reinterpret_cast<const std::byte*>(library->dlpi_addr + segment.p_vaddr);
    search.found = search.found || has_own_note(at, segment.p_memsz);
  }
  return 1;
}

bool is_own_library(const link_map& library) {
  NoteSearch search{library.l_addr, false};
  dl_iterate_phdr(search_notes, &search);
  return search.found;
}

const link_map* map_of(void* handle) {
  link_map* map = nullptr;
  return dlinfo(handle, RTLD_DI_LINKMAP, &map) == 0 ? map : nullptr;
}

// Whether Slipstream's libnccl.so.2 is in the global symbol scope, for instance because it is preloaded. Then other
// libraries find its functions first.
bool is_own_library_global() {
  const void* const function = dlsym(RTLD_DEFAULT, "ncclGetVersion");
  Dl_info info{};
  link_map* map = nullptr;
  return function && dladdr1(function, &info, reinterpret_cast<void**>(&map), RTLD_DL_LINKMAP) != 0 && map &&
         is_own_library(*map);
}

// Closes the library unless it is released.
struct Closer {
  void operator()(void* handle) const { dlclose(handle); }
};
using Handle = std::unique_ptr<void, Closer>;

// Finds all functions except ncclGetVersion. Returns the name of the first required one that is missing, or "".
std::string find_functions(void* handle, NcclFunctions& functions) {
  std::string missing;
  const auto find = [&](auto& function, const char* name) {
    function = reinterpret_cast<std::remove_reference_t<decltype(function)>>(dlsym(handle, name));
    if (!function && missing.empty()) missing = name;
  };
  find(functions.get_error_string, "ncclGetErrorString");
  find(functions.get_last_error, "ncclGetLastError");
  find(functions.get_unique_id, "ncclGetUniqueId");
  find(functions.comm_init_rank_config, "ncclCommInitRankConfig");
  find(functions.comm_finalize, "ncclCommFinalize");
  find(functions.comm_destroy, "ncclCommDestroy");
  find(functions.comm_abort, "ncclCommAbort");
  find(functions.comm_get_async_error, "ncclCommGetAsyncError");
  find(functions.all_reduce, "ncclAllReduce");
  find(functions.reduce, "ncclReduce");
  find(functions.broadcast, "ncclBroadcast");
  find(functions.all_gather, "ncclAllGather");
  find(functions.reduce_scatter, "ncclReduceScatter");
  find(functions.send, "ncclSend");
  find(functions.recv, "ncclRecv");
  find(functions.group_start, "ncclGroupStart");
  find(functions.group_end, "ncclGroupEnd");
  find(functions.red_op_create_pre_mul_sum, "ncclRedOpCreatePreMulSum");
  find(functions.red_op_destroy, "ncclRedOpDestroy");
  std::string result = missing;  // the functions below are optional
  find(functions.comm_split, "ncclCommSplit");
  find(functions.comm_revoke, "ncclCommRevoke");
  return result;
}

NcclSearch load(const std::string& file) {
  const auto problem = [&](const std::string& text) { return NcclSearch{nullptr, fmt::format("{}: {}", file, text)}; };
  if (file.find('/') != std::string::npos && ::access(file.c_str(), R_OK) != 0) return problem(std::strerror(errno));
  // RTLD_LOCAL: the program may have another libnccl of its own. RTLD_DEEPBIND: if Slipstream's libnccl is preloaded,
  // calls inside NVIDIA's library would otherwise reach Slipstream's. Not used otherwise: sanitizers refuse it.
  const int deep = is_own_library_global() ? RTLD_DEEPBIND : 0;
  if (const Handle before(deep != 0 ? dlopen(file.c_str(), RTLD_NOW | RTLD_NOLOAD) : nullptr); before) {
    const link_map* const map = map_of(before.get());
    if (map && !is_own_library(*map))
      return problem(
          "the program had loaded it before, so its inner calls reach Slipstream's libnccl.so.2: set SLIP_NCCL to this "
          "file before the program starts");
  }
  Handle handle(dlopen(file.c_str(), RTLD_NOW | RTLD_LOCAL | deep));
  if (!handle) {
    const char* const why = dlerror();
    return {nullptr, why ? why : fmt::format("{}: it cannot be loaded", file)};
  }
  const link_map* const map = map_of(handle.get());
  if (map && is_own_library(*map)) {
    static_cast<void>(handle.release());  // it stays loaded: its static objects are made for the life of the process
    return problem("this is Slipstream's own libnccl.so.2, which would hand its calls to itself: name NVIDIA's");
  }
  auto made = std::make_unique<NcclLibrary>();
  made->path = map && map->l_name[0] != '\0' ? map->l_name : file;
  NcclFunctions& functions = made->functions;
  functions.get_version = reinterpret_cast<NcclResult (*)(int*)>(dlsym(handle.get(), "ncclGetVersion"));
  if (!functions.get_version || functions.get_version(&made->version) != NcclResult::kSuccess)
    return problem("this is not NCCL: it has no ncclGetVersion");
  if (made->version < kMinNcclVersion)
    return problem(fmt::format("this is NCCL {}: at least {} is needed", nccl_version_text(made->version),
                               nccl_version_text(kMinNcclVersion)));
  if (const std::string missing = find_functions(handle.get(), functions); !missing.empty())
    return problem(fmt::format("it has no {}", missing));
  static_cast<void>(handle.release());  // it stays loaded
  return {made.release(), {}};
}

// The path where pip installs NVIDIA's library if this code is in Slipstream's Python package; "": unknown.
std::string pip_path() {
  Dl_info info{};
  if (dladdr(reinterpret_cast<const void*>(&pip_path), &info) == 0 || !info.dli_fname) return {};
  const std::string own = info.dli_fname;
  const std::size_t slash = own.rfind('/');
  return slash == std::string::npos ? std::string() : own.substr(0, slash) + "/../nvidia/nccl/lib/" + kName;
}

NcclSearch search_all() {
  std::vector<std::string> files{kName};
  if (std::string path = pip_path(); !path.empty()) files.push_back(std::move(path));
  NcclSearch result;
  std::string problems;
  for (const std::string& file : files) {
    result = load(file);
    if (result.loaded) return result;
    problems += (problems.empty() ? "" : "; ") + result.problem;
  }
  return {nullptr, problems};
}

const char* request_text(NcclRequest request) {
  constexpr const char* kTexts[] = {"is not set", "is auto", "names a library"};
  const auto index = static_cast<std::size_t>(request);
  return index < std::size(kTexts) ? kTexts[index] : "is unknown";
}

// The reason why NCCL cannot run the calls of these ranks; empty: it can.
std::optional<std::string> find_obstacle(std::span<const EngineOffer> offers) {
  for (std::size_t rank = 0; rank < offers.size(); ++rank) {
    if (offers[rank].problem[0] != '\0') return fmt::format("rank {}: {}", rank, offers[rank].problem);
  }
  for (std::size_t rank = 1; rank < offers.size(); ++rank) {
    if (offers[rank].version != offers[0].version)
      return fmt::format("rank 0 has NCCL {} and rank {} has {}: all ranks need the same version",
                         nccl_version_text(offers[0].version), rank, nccl_version_text(offers[rank].version));
  }
  for (std::size_t a = 0; a < offers.size(); ++a) {
    for (std::size_t b = a + 1; b < offers.size(); ++b) {
      if (offers[a].host == offers[b].host && std::memcmp(offers[a].gpu, offers[b].gpu, sizeof(offers[a].gpu)) == 0)
        return fmt::format("ranks {} and {} are on one GPU, and NCCL refuses several ranks on one GPU", a, b);
    }
  }
  // One thread may issue the calls of both ranks. NCCL's first call of one rank waits for the other rank, whose call
  // the thread would make next: a deadlock.
  for (std::size_t a = 0; a < offers.size(); ++a) {
    for (std::size_t b = a + 1; b < offers.size(); ++b) {
      if (offers[a].process == offers[b].process)
        return fmt::format("ranks {} and {} are in one process, and calls of NCCL would wait for each other there", a,
                           b);
    }
  }
  if (offers[0].deterministic != 0)
    return "the communicator is deterministic, and the bits of NCCL's results depend on its algorithms";
  return std::nullopt;
}

}  // namespace

std::string nccl_version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string NcclLibrary::text() const { return fmt::format("NCCL {} ({})", nccl_version_text(version), path); }

NcclSearch find_nccl(const std::string& request) {
  static base::Mutex mutex;
  static auto* const kFound SLIP_PT_GUARDED_BY(mutex) = new std::map<std::string, NcclSearch>;  // by request
  const base::LockGuard lock(mutex);
  const auto [place, is_new] = kFound->try_emplace(request);
  if (is_new) place->second = request == "auto" ? search_all() : load(request);
  return place->second;
}

NcclRequest nccl_request_of(const std::string& value) {
  if (value.empty() || value == "off") return NcclRequest::kNone;
  return value == "auto" ? NcclRequest::kAuto : NcclRequest::kPath;
}

void EngineOffer::set_problem(const std::string& text) {
  std::memset(problem, 0, sizeof(problem));
  std::string_view(text).copy(problem, sizeof(problem) - 1);
}

EngineChoice choose_engine(std::span<const EngineOffer> offers) {
  const NcclRequest request = offers[0].request;
  for (std::size_t rank = 1; rank < offers.size(); ++rank) {
    if (offers[rank].request != request)
      return {.reason = fmt::format("SLIP_NCCL {} on rank 0 and {} on rank {}: it must be the same on all ranks",
                                    request_text(request), request_text(offers[rank].request), rank),
              .is_error = true,
              .code = ErrorCode::kMismatch};
  }
  if (request == NcclRequest::kNone) return {.reason = "SLIP_NCCL is not set or is off"};
  const std::optional<std::string> obstacle = find_obstacle(offers);
  if (!obstacle) {
    const bool polls = std::ranges::any_of(offers, [](const EngineOffer& one) { return one.polls != 0; });
    return {.uses_nccl = true, .polls = polls, .reason = "every rank has a GPU of its own"};
  }
  if (request == NcclRequest::kAuto) return {.reason = *obstacle};
  return {.reason = fmt::format("SLIP_NCCL: {}; unset SLIP_NCCL to use Slipstream's own kernels", *obstacle),
          .is_error = true,
          .code = ErrorCode::kUnsupported};
}

}  // namespace slip::comm
