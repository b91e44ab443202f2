// Sanitizers make everything many times slower: long random tests then do a share of their rounds.
#pragma once

namespace slip::test {

#if defined(__SANITIZE_THREAD__) || defined(__SANITIZE_ADDRESS__)
inline constexpr unsigned kShare = 20;
#else
inline constexpr unsigned kShare = 1;
#endif

}  // namespace slip::test
