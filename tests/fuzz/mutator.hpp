// Damages JSON by a seed: changes bytes, values, numbers and lines, cuts texts, nests brackets without end.
#pragma once

#include <algorithm>
#include <cstdint>
#include <random>
#include <string>
#include <vector>

namespace slip {

struct MutatorWords {
  std::vector<std::string> originals;  // good ones, to begin with
  std::vector<std::string> values;     // what to put where a value is
  std::vector<std::string> pieces;     // to nest
  std::string deep_begin;              // what they are nested in, at times
};

class Mutator {
 public:
  Mutator(std::uint64_t seed, const MutatorWords& words) : random_(seed), words_(words) {}

  std::string make() {
    if (below(40) == 0) return deep();
    std::string text = words_.originals[below(words_.originals.size())];
    for (std::uint64_t change = below(5); change > 0; --change) mutate(text);
    if (below(12) == 0) text.resize(below(text.size() + 1));
    return text;
  }

 private:
  std::uint64_t below(std::uint64_t limit) { return random_() % limit; }

  std::string deep() {
    const std::string piece = words_.pieces[below(words_.pieces.size())];
    std::string text = below(2) ? std::string() : words_.deep_begin;
    for (std::uint64_t i = 1 + below(5000); i > 0; --i) text += piece;
    return text;
  }

  // What stands at a value's place.
  std::string hostile() {
    if (below(3) == 0) return std::to_string(below(12));
    if (below(4) == 0) return std::to_string(random_());
    return words_.values[below(words_.values.size())];
  }

  // Another value for some key.
  void replace_value(std::string& text) {
    std::size_t colon = text.find("\":", below(text.size()));
    if (colon == std::string::npos) return;
    colon += 2;
    std::size_t end = text.find_first_of(",}]", colon);
    if (end == std::string::npos) end = text.size();
    text.replace(colon, end - colon, hostile());
  }

  // Another number at the place of one: positions, sequence numbers, streams and buffers that repeat or jump.
  void replace_number(std::string& text) {
    const std::size_t from = text.find_first_of("0123456789", below(text.size()));
    if (from == std::string::npos) return;
    std::size_t end = text.find_first_not_of("0123456789", from);
    if (end == std::string::npos) end = text.size();
    text.replace(from, end - from, below(2) ? std::to_string(below(40)) : hostile());
  }

  void move_line(std::string& text) {
    const std::size_t from = text.find('\n', below(text.size()));
    const std::size_t to = text.find('\n', below(text.size()));
    if (from == std::string::npos || to == std::string::npos) return;
    const std::size_t end = std::min(text.find('\n', from + 1), text.size());
    const std::string line = text.substr(from, end - from);
    if (below(2)) text.erase(from, end - from);
    text.insert(std::min(to, text.size()), line);
  }

  void mutate(std::string& text) {
    static const std::string kAlphabet = "{}[]\",:\\0123456789.eE+-tfnu \n\x80\xFF";
    if (text.empty()) text = " ";
    const std::size_t at = below(text.size());
    const std::size_t length = std::min<std::size_t>(below(40), text.size() - at);
    switch (below(10)) {
      case 0: text[at] = kAlphabet[below(kAlphabet.size())]; break;
      case 1: text[at] = static_cast<char>(random_()); break;
      case 2: text.erase(at, length); break;
      case 3: text.insert(at, text.substr(below(text.size()), length)); break;
      case 4:
      case 5: replace_value(text); break;
      case 6:
      case 7: replace_number(text); break;
      default: move_line(text);
    }
  }

  std::mt19937_64 random_;
  const MutatorWords& words_;
};

}  // namespace slip
