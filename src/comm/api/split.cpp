#include "comm/api/split.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace slip {
namespace {

struct Choice {
  std::int32_t color = 0, key = 0;
};

// What a rank that makes a root tells.
struct Offer {
  UniqueId id;
  char failure[256] = {};  // why it could not
};

}  // namespace

std::optional<SplitGroup> split_group(Bootstrap& bootstrap, int color, int key, const SetupCall& call) {
  const std::vector<Choice> choices = bootstrap.all_gather(Choice{color, key}, call);
  std::vector<int> members;
  for (int rank = 0; rank < bootstrap.nranks(); ++rank) {
    if (choices[static_cast<std::size_t>(rank)].color == color) members.push_back(rank);
  }
  std::stable_sort(members.begin(), members.end(), [&](int a, int b) {
    return choices[static_cast<std::size_t>(a)].key < choices[static_cast<std::size_t>(b)].key;
  });
  Offer own;
  if (color >= 0 && members.front() == bootstrap.rank()) {
    try {
      own.id = make_root(bootstrap);
    } catch (const std::exception& error) {  // the others are not left waiting
      std::string_view(error.what()).copy(own.failure, sizeof(own.failure) - 1);
    }
  }
  const std::vector<Offer> offers = bootstrap.all_gather(own, call);
  if (color < 0) return std::nullopt;
  const Offer& offer = offers[static_cast<std::size_t>(members.front())];
  if (!offer.id.valid())
    throw Error(Code::kIo,
                fmt::format("rank {}, the first of colour {}, could not listen for its group: {}", members.front(),
                            color, offer.failure),
                {});
  const auto place = std::find(members.begin(), members.end(), bootstrap.rank()) - members.begin();
  return SplitGroup{{with_secret(bootstrap, offer.id), static_cast<int>(place), static_cast<int>(members.size())},
                    {members.begin(), members.end()}};
}

void make_in_parent(Bootstrap& parent, const SplitGroup& group, const Recovery::Make& make) {
  const auto abort = std::make_shared<AbortFlag>();
  parent.failures().on_trouble(abort, group.members);
  try {
    make(group.membership, abort);
  } catch (const Error& error) {
    parent.failures().on_trouble(nullptr, {});
    throw parent.with_cause(error);
  }
  parent.failures().on_trouble(nullptr, {});
}

}  // namespace slip
