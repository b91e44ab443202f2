// The built-in ops on the cpu. Each spreads its work over all cores (base/team.hpp), and gives the same bits however
// many there are.
#pragma once

#include "slip/kernel.hpp"

namespace slip::cpu {

void linear(const Args& args);
void bias(const Args& args);
void add(const Args& args);
void multiply(const Args& args);
void relu(const Args& args);
void gelu(const Args& args);
void silu(const Args& args);
void rms_norm(const Args& args);
void layer_norm(const Args& args);

}  // namespace slip::cpu
