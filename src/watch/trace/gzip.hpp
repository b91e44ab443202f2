// Traces compressed with gzip, as PyTorch's profiler writes them.
#pragma once

#include <string>

#include "base/json_reader.hpp"
#include "slip/error.hpp"

namespace slip {

// The bytes that `packed` holds, unpacked piece by piece. Throws kUnsupported if the library was built without zlib;
// reading from it throws kParse if the file is damaged or cut short. `name` is for messages.
JsonReader::Source unpacked(JsonReader::Source packed, const std::string& name, Here here);

}  // namespace slip
