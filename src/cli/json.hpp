// Tables as data.
#pragma once

#include <nlohmann/json.hpp>

#include "cli/text.hpp"

namespace slip::cli {

// One object a row, by the columns' keys; cells without a value are null.
nlohmann::ordered_json json_of(const Table& table);

}  // namespace slip::cli
