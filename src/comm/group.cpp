#include "comm/group.hpp"

#include <algorithm>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "slip/communicator.hpp"
#include "slip/stream.hpp"

namespace slip {
namespace {

struct Kept {
  int depth = 0;
  std::vector<PostOffice*> offices;  // of the letters
  std::vector<Letter> letters;
};

Kept& kept() {
  thread_local Kept of_thread;
  return of_thread;
}

// The first stream carries them all; the others wait for it, and it for them.
void issue_together(PostOffice& office, std::span<const Letter> letters) {
  const StreamRef stream = letters.front().stream;
  std::vector<StreamRef> others;
  for (const Letter& letter : letters) {
    if (letter.stream == stream || std::find(others.begin(), others.end(), letter.stream) != others.end()) continue;
    others.push_back(letter.stream);
  }
  for (const StreamRef& other : others) stream.wait(other.record());
  office.issue_letters(letters, stream);
  if (others.empty()) return;
  const Event done = stream.record();
  for (const StreamRef& other : others) other.wait(done);
}

}  // namespace

void take_letter(PostOffice& office, const Letter& letter) {
  Kept& now = kept();
  if (now.depth == 0) return office.issue_letters({&letter, 1}, letter.stream);
  now.offices.push_back(&office);
  now.letters.push_back(letter);
}

Group::Group() { ++kept().depth; }

Group::~Group() {
  try {
    end();
  } catch (const Error& error) {
    log_line(error.what());
  }
}

void Group::end() {
  Kept& now = kept();
  if (!std::exchange(open_, false) || --now.depth > 0 || now.letters.empty()) return;
  Kept all{0, std::exchange(now.offices, {}), std::exchange(now.letters, {})};
  PostOffice* const first = all.offices.front();
  const StreamRef stream = all.letters.front().stream;
  const auto others = [&](const Letter& letter) { return !(letter.stream == stream); };
  if (std::count(all.offices.begin(), all.offices.end(), first) == std::ssize(all.offices) &&
      std::none_of(all.letters.begin(), all.letters.end(), others)) {
    first->issue_letters(all.letters, stream);
    all.offices.clear();  // the next group uses their memory
    all.letters.clear();
    if (now.letters.empty()) now = std::move(all);
    return;
  }
  std::vector<PostOffice*> done;
  std::vector<Letter> letters;
  for (PostOffice* const office : all.offices) {
    if (std::find(done.begin(), done.end(), office) != done.end()) continue;
    done.push_back(office);
    letters.clear();
    for (std::size_t i = 0; i < all.letters.size(); ++i) {
      if (all.offices[i] == office) letters.push_back(all.letters[i]);
    }
    issue_together(*office, letters);
  }
}

}  // namespace slip
