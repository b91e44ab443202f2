// The common parts of all functions of libnccl.so.2: the two names of each function, the conversion of exceptions to
// NCCL's result codes, and the text for ncclGetLastError.
//
// All functions may be called by any thread.
#pragma once

#include <fmt/format.h>

#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

#include "nccl/nccl.h"
#include "slip/error.hpp"

#if defined(__GNUC__) && !defined(__clang__)
#pragma GCC diagnostic ignored "-Wmissing-attributes"  // g++ marks some pncclX as nothrow, but not their alias
#endif

// Begins the definition of pncclX and makes ncclX its weak alias.
#define SLIP_NCCL_API(result, name, ...)                                                                \
  extern "C" [[gnu::visibility("default")]] result p##name(__VA_ARGS__);                                \
  extern "C" [[gnu::weak, gnu::alias("p" #name), gnu::visibility("default")]] result name(__VA_ARGS__); \
  extern "C" result p##name(__VA_ARGS__)

namespace slip::nccl {

// An error, with the result code that the API function returns.
class ApiError : public std::runtime_error {
 public:
  ApiError(ncclResult_t code, const std::string& text) : std::runtime_error(text), result(code) {}
  const ncclResult_t result;
};

template <class... T>
[[noreturn]] void invalid_argument(fmt::format_string<T...> text, T&&... values) {
  throw ApiError(ncclInvalidArgument, fmt::format(text, std::forward<T>(values)...));
}
template <class... T>
[[noreturn]] void invalid_usage(fmt::format_string<T...> text, T&&... values) {
  throw ApiError(ncclInvalidUsage, fmt::format(text, std::forward<T>(values)...));
}

inline void require_pointer(const void* pointer, const char* name) {
  if (!pointer) [[unlikely]]
    invalid_argument("{} is a null pointer", name);
}

// Passed to calls of the runtime instead of a source position: errors name the caller's function, not a line of this
// library.
inline constexpr Here kNoPlace{};

ncclResult_t result_of(ErrorCode code);

// The result of a function, and the reason for an error.
struct Outcome {
  ncclResult_t result = ncclSuccess;
  std::string text;
};
// REQUIRES: called in a catch block.
Outcome outcome_of_exception();

// Stores the text for ncclGetLastError, stores the result in the open group of this thread, and prints the text if
// NCCL_DEBUG is WARN or higher. Returns the result. `comm` may be null or already destroyed.
ncclResult_t report(const char* function, ncclComm_t comm, const Outcome& outcome);

// Runs the body of an API function. The body returns ncclSuccess or ncclInProgress, or throws.
template <class Body>
ncclResult_t run_api(const char* function, ncclComm_t comm, const Body& body) {
  try {
    return body();
  } catch (...) {
    return report(function, comm, outcome_of_exception());
  }
}

enum class DebugLevel : int { kNone, kVersion, kWarn, kInfo };  // NCCL_DEBUG
void debug_line(std::string_view text);                         // to stderr, or to the file of NCCL_DEBUG_FILE
bool debugs(DebugLevel level);                                  // whether lines of this level are printed
void print_version_once();                                      // if NCCL_DEBUG is VERSION or higher

}  // namespace slip::nccl
