// Which cores this process may use, by their numbers on this machine: processes of one machine can compare.
#pragma once

#include <bitset>

namespace slip {

using CoreSet = std::bitset<1024>;
CoreSet core_set();

}  // namespace slip
