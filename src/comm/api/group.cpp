#include "slip/group.hpp"

#include <algorithm>
#include <exception>
#include <string>
#include <utility>
#include <vector>

#include "base/error_text.hpp"
#include "base/terminal.hpp"
#include "comm/api/failed_op.hpp"
#include "comm/api/group.hpp"
#include "slip/stream.hpp"

namespace slip {
namespace {

// The messages of a thread's group. Memory and the last communicator are kept from group to group, so that a group
// allocates nothing and counts no references.
struct Kept {
  struct Office {
    PostOffice* office = nullptr;
    std::weak_ptr<PostOffice> alive;  // empty once the communicator is destroyed: then `office` dangles
    bool is(const PostOffice& other) const { return office == &other && !alive.expired(); }
  };
  int depth = 0;
  std::vector<Office> offices;  // each communicator once
  std::vector<Letter> letters;
  std::vector<std::size_t> office_of;  // of each letter: index in `offices`

  void add(PostOffice& office, const Letter& letter) {
    if (letters.empty() && !(offices.size() == 1 && offices.front().is(office))) offices.clear();
    std::size_t index = 0;
    while (index < offices.size() && !offices[index].is(office)) ++index;
    if (index == offices.size()) offices.push_back({&office, office.weak()});
    letters.push_back(letter);
    office_of.push_back(index);
  }
  void drop_from(std::size_t count) {
    letters.erase(letters.begin() + static_cast<std::ptrdiff_t>(count), letters.end());
    office_of.resize(count);
  }
};

Kept& kept() {
  thread_local Kept of_thread;
  return of_thread;
}

// The group is over, with or without success.
struct Emptied {
  Kept& kept;
  ~Emptied() { kept.drop_from(0); }
};

std::vector<StreamRef> streams_of(std::span<const Letter> letters) {
  std::vector<StreamRef> streams;
  for (const Letter& letter : letters) {
    if (std::find(streams.begin(), streams.end(), letter.stream) == streams.end()) streams.push_back(letter.stream);
  }
  return streams;
}

// The first stream carries them all; the others wait for it, and it for them.
void issue_together(PostOffice& office, std::span<const Letter> letters) {
  const std::vector<StreamRef> streams = streams_of(letters);
  const StreamRef stream = streams.front();
  const auto others = std::span(streams).subspan(1);
  for (const StreamRef& other : others) stream.wait(other.record());
  office.issue_letters(letters, stream);
  if (others.empty()) return;
  const Event done = stream.record();
  for (const StreamRef& other : others) other.wait(done);
}

// Another thread that destroys the communicator now would be a race with any other call, too.
PostOffice& office_at(const Kept& all, std::size_t index) {
  const Kept::Office& one = all.offices[index];
  if (!one.alive.expired()) [[likely]]
    return *one.office;
  const auto first = std::find(all.office_of.begin(), all.office_of.end(), index) - all.office_of.begin();
  throw Error(Code::kInvalidHandle, "the communicator of this message was destroyed before the group ended",
              all.letters[static_cast<std::size_t>(first)].here);
}

// Nothing is issued if any of them is refused.
void issue_all(const Kept& all) {
  const StreamRef stream = all.letters.front().stream;
  const auto is_other = [&](const Letter& letter) { return !(letter.stream == stream); };
  if (all.offices.size() == 1 && std::none_of(all.letters.begin(), all.letters.end(), is_other))
    return office_at(all, 0).issue_letters(all.letters, stream);
  std::vector<std::pair<PostOffice*, std::vector<Letter>>> batches;
  for (std::size_t office = 0; office < all.offices.size(); ++office) {
    std::vector<Letter> letters;
    for (std::size_t i = 0; i < all.letters.size(); ++i) {
      if (all.office_of[i] == office) letters.push_back(all.letters[i]);
    }
    if (!letters.empty()) batches.emplace_back(&office_at(all, office), std::move(letters));
  }
  for (const auto& [office, letters] : batches) office->check_letters(letters, letters.front().stream);
  for (const auto& [office, letters] : batches) issue_together(*office, letters);
}

// The error of a group that ended in its destructor: whoever uses its communicators or streams next gets it.
void stick(const Kept& all, const Error& error) {
  const std::string text = bare_text(error);
  for (const Kept::Office& one : all.offices) {
    if (const std::shared_ptr<PostOffice> office = one.alive.lock()) office->fail(error.code(), "a group: " + text);
  }
  for (const StreamRef& stream : streams_of(all.letters)) enqueue_failure(stream, error);
}

}  // namespace

void take_letter(PostOffice& office, const Letter& letter) {
  Kept& now = kept();
  if (now.depth == 0) return office.issue_letters({&letter, 1}, letter.stream);
  now.add(office, letter);
}

Group::Group() : exceptions_(std::uncaught_exceptions()) {
  Kept& now = kept();
  before_ = now.letters.size();
  ++now.depth;
}

Group::~Group() {
  if (!open_) return;
  Kept& now = kept();
  --now.depth;
  if (std::uncaught_exceptions() > exceptions_) {  // cancelled
    now.drop_from(std::min(before_, now.letters.size()));
    return;
  }
  if (now.depth > 0 || now.letters.empty()) return;
  const Emptied emptied{now};
  try {
    try {
      issue_all(now);
    } catch (const Error& error) {
      log_line(error.what());
      stick(now, error);
    }
  } catch (const std::exception& error) {  // no memory even for the failure
    log_line(error.what());
  }
}

void Group::end() {
  Kept& now = kept();
  if (!std::exchange(open_, false) || --now.depth > 0 || now.letters.empty()) return;
  const Emptied emptied{now};
  issue_all(now);
}

}  // namespace slip
