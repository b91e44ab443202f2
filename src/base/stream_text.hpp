// The one form in which errors and reports name a stream: its id, and its name if the program gave it one.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace slip::base {

// The name that the program gave to a stream; empty: none. Observers get "stream N" for a stream without a name; in a
// merged trace, N is the id that the stream had in its own process.
std::string_view given_stream_name(std::string_view name);

std::string stream_number(std::uint64_t id, std::string_view name);  // "5 'loads'", or "5" without a name
std::string stream_text(std::uint64_t id, std::string_view name);    // "stream 5 'loads'", or "stream 5"

}  // namespace slip::base
