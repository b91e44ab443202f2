// kShare: long random tests divide their number of rounds by it, because sanitizers make them many times slower.
#pragma once

namespace slip::test {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr unsigned kShare = 20;
#else
inline constexpr unsigned kShare = 1;
#endif

}  // namespace slip::test
